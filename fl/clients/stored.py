"""Clients as records in an arena (arena.py), in memory or in files, with a table of numbers beside them.

    slot         one client at one version: its place in the arena, its Form, its numbers, and how many
                 populations hold it. Those that nobody holds are dropped
    population   the slot and the version of every client: two columns

There is no Python object per client: values are made when they are read. `ref(k).get()` gives what lies in
the arena, without a copy, for as long as the population is there; `clients[k]` gives a copy that stays.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Generic

import numpy as np
from numpy.typing import NDArray

import sparse_engine as se
from fl.clients.arena import CHUNK, Arena, Place
from fl.clients.base import C
from fl.clients.memory import Held
from fl.clients.record import Form, Reader, owned, take
from fl.errors import StoreError

Slots = NDArray[np.int64]
_GONE = -1
_COLUMNS = {"f": np.float64, "i": np.int64, "b": np.bool_}
_FEW = 64  # slots at first


class Store:
    """Where the populations of a run lie. `folder`: of their files; None: in memory."""

    def __init__(self, layout: se.Layout, folder: Path | None = None, chunk: int = CHUNK) -> None:
        self.layout = layout
        self._arena = Arena(folder, chunk)
        self.reader = Reader(self._arena, layout)
        self._forms: list[Form] = []
        self._form_numbers: dict[Form, int] = {}
        self._places = np.zeros((_FEW, 3), np.int64)  # chunk, offset, length
        self._form_of, self._holders = np.zeros(_FEW, np.int32), np.zeros(_FEW, np.int32)
        self._numbers = np.zeros((_FEW, 0), np.int64)
        self._free: list[int] = [*range(_FEW)][::-1]
        self._dying = deque[Slots]()  # of populations that are gone

    def __call__(self, values: Iterable[C], versions: Iterable[int] | None = None) -> "Stored[C]":
        """The population of these values; `versions`: default 0 each. An object that comes several times in a
        row is stored once."""
        self.tidy()
        slots, last = list[int](), None  # type: list[int], Any
        try:
            for value in values:
                if not slots or value is not last:
                    slots.append(self.add(value))
                    last = value
                else:
                    slots.append(slots[-1])
        except BaseException:
            self.discard({*slots})
            raise
        told = [0] * len(slots) if versions is None else [*versions]
        if len(told) != len(slots):
            self.discard({*slots})
            raise ValueError(f"expected a version per client, got {len(told)} of {len(slots)} clients")
        return Stored(self, np.array(slots, np.int64), np.array(told, np.int64))

    def filled(self, values: Iterable[tuple[int, C]], count: int) -> "Stored[C]":
        """The first population of `count` clients from pairs (client, value), each written as it comes."""
        nobody: Stored[Any] = Stored(
            self, np.array([self.add(None)] * count, np.int64), np.zeros(count, np.int64)
        )
        made: Stored[C] = nobody.with_each(values)
        if (made.versions == 0).any():
            raise ValueError(f"expected a value of each of {count} clients, got {int(made.versions.sum())}")
        made.versions[:] = 0
        return made

    @property
    def nbytes(self) -> int:
        """Of all records that are there, without the table."""
        return self._arena.nbytes

    @property
    def overhead(self) -> int:
        """Bytes of the table."""
        table = (self._places, self._form_of, self._holders, self._numbers)
        return sum(column.nbytes for column in table) + 8 * len(self._free)

    def add(self, value: Any) -> int:
        """The slot of a new record, which nobody holds yet."""
        form, numbers, parts, length = take(value)
        place = self._arena.append(parts, length)
        if not self._free:
            self._grow()
        slot = self._free.pop()
        if form not in self._form_numbers:
            self._form_numbers[form] = len(self._forms)
            self._forms.append(form)
        if len(numbers) > self._numbers.shape[1]:
            more = np.zeros((len(self._numbers), len(numbers) - self._numbers.shape[1]), np.int64)
            self._numbers = np.hstack([self._numbers, more])
        self._places[slot] = *place, length
        self._form_of[slot] = self._form_numbers[form]
        self._numbers[slot, : len(numbers)] = numbers
        return slot

    def read(self, slot: int) -> Any:
        """What lies there."""
        form = self._forms[self._form_of[slot]]
        chunk, offset, _ = self._places[slot].tolist()
        return self.reader.value(form, self._numbers[slot], Place(chunk, offset))

    def forms(self, slots: Slots) -> NDArray[np.int32]:
        """The number of each one's Form."""
        return self._form_of[slots]

    def hold(self, slots: Slots) -> None:
        """One more population has these."""
        if len(slots):
            self._holders += np.bincount(slots, minlength=len(self._holders)).astype(np.int32)

    def leave(self, slots: Slots) -> None:
        """One population less has these. Those that nobody has any more are dropped."""
        if not len(slots):
            return
        self._holders -= np.bincount(slots, minlength=len(self._holders)).astype(np.int32)
        found = np.unique(slots)
        self._drop(found[self._holders[found] == 0])

    def leave_later(self, slots: Slots) -> None:
        """The same with the next `tidy`: of a population that goes in any thread, at any time."""
        self._dying.append(slots)

    def tidy(self) -> None:
        """Drop what only populations had that are gone."""
        while self._dying:
            self.leave(self._dying.popleft())

    def _drop(self, slots: Slots) -> None:
        self._arena.drop(map(tuple, self._places[slots].tolist()))
        self._free.extend(slots.tolist())

    def discard(self, slots: Iterable[int]) -> None:
        """Drop slots that nobody ever held."""
        self._drop(np.array([*slots], np.int64))

    def _grow(self) -> None:
        """An eighth more, so that the table is never much larger than what it says."""
        old = len(self._holders)
        new = old + max(_FEW, old // 8)

        def larger(column: NDArray[Any]) -> NDArray[Any]:
            made = np.zeros((new, *column.shape[1:]), column.dtype)
            made[:old] = column
            return made

        self._places, self._numbers = larger(self._places), larger(self._numbers)
        self._form_of, self._holders = larger(self._form_of), larger(self._holders)
        self._free.extend(range(new - 1, old - 1, -1))

    def column(self, slots: Slots, path: str) -> list[Any]:
        """The number at a path ("sent.nbytes") of every slot; None where there is none."""
        forms = self._form_of[slots]
        found: list[Any] = [None] * len(slots)
        for one in np.unique(forms).tolist():
            kind, at = _at(self._forms[one], path)
            where = np.flatnonzero(forms == one)
            if kind is None:
                continue
            bits = self._numbers[slots[where], at]
            numbers = bits.view(np.float64 if kind == "f" else np.int64).astype(_COLUMNS[kind]).tolist()
            if len(where) == len(slots):
                return numbers
            for k, value in zip(where.tolist(), numbers, strict=True):
                found[k] = value
        return found

    def counts(self, slots: Slots, path: str) -> NDArray[np.int64]:
        """[slots, weights]: stored entries of the mask or model at a path, weight by weight."""
        made = np.empty((len(slots), len(self.layout.segments)), np.int64)
        masks = {n: _mask_at(self._forms[n], path) for n in np.unique(self._form_of[slots]).tolist()}
        forms, places = self._form_of[slots].tolist(), self._places[slots].tolist()
        for i, (form, (chunk, offset, _)) in enumerate(zip(forms, places, strict=True)):
            made[i] = self.reader.counts(self._forms[form], Place(chunk, offset), masks[form])
        return made


class Stored(Generic[C]):
    """base.Clients in a `Store`."""

    def __init__(self, store: Store, slots: Slots, versions: NDArray[np.int64]) -> None:
        self.store, self.slots, self.versions = store, slots, versions
        self._left: NDArray[np.int64] | None = None
        store.hold(slots)

    def __del__(self) -> None:
        if hasattr(self, "_left"):
            there = self.slots if self._left is None else self.slots[self.slots != _GONE]
            self.store.leave_later(there)

    def __len__(self) -> int:
        return len(self.slots)

    def __getitem__(self, k: int, /) -> C:
        value: C = owned(self.store.read(self._slot(k)))
        return value

    def __iter__(self) -> Iterator[C]:
        return (self[k] for k in range(len(self)))

    def __repr__(self) -> str:
        return f"Stored({len(self):,} clients, versions up to {max(self.versions, default=0)})"

    def ref(self, k: int) -> "Lying[C]":
        """Client k's value, where it lies."""
        self._slot(k)
        return Lying(self, int(k))

    def with_(self, changed: Mapping[int, C]) -> "Stored[C]":
        """The population with other values of some clients, one version later."""
        return self.with_each(changed.items())

    def with_each(self, changed: Iterable[tuple[int, C]]) -> "Stored[C]":
        """The same from pairs (client, value), each written as it comes and then not kept."""
        store = self.store
        store.tidy()
        made: dict[int, int] = {}
        try:
            for k, value in changed:
                self._there(k)
                slot = store.add(value)
                if k in made:
                    store.discard([made[k]])
                made[int(k)] = slot
        except BaseException:
            store.discard(made.values())
            raise
        slots, versions = self.slots.copy(), self.versions.copy()
        who = np.fromiter(made, np.int64, len(made))
        slots[who] = np.fromiter(made.values(), np.int64, len(made))
        versions[who] += 1
        if self._left is not None and (gone := np.flatnonzero(slots == _GONE)).size:
            raise StoreError(f"expected every client's value, got none of client {gone[0]}: it was spent")
        return Stored(store, slots, versions)

    def spend(self, readers: NDArray[np.int64]) -> None:
        """From now on a value is dropped once it was read (`read_by`) as often as `readers` says. There is no
        way back: whoever does that can make the population again."""
        if self._left is not None or readers.shape != self.slots.shape:
            raise ValueError(f"expected a count per client, once, got {readers.shape} of {len(self)} clients")
        self.slots, self._left = self.slots.copy(), readers.copy()

    def read_by(self, givers: NDArray[Any]) -> None:
        """Readers that are done: each has read one of these."""
        assert self._left is not None, "nobody spends this population"
        np.subtract.at(self._left, givers, 1)
        over = np.unique(givers)
        over = over[self._left[over] == 0]
        slots = self.slots[over]
        self.slots[over] = _GONE
        self.store.leave(slots)

    def column(self, path: str) -> list[Any]:
        """The number at a path ("sent.nbytes") of every client; None where there is none."""
        return self.store.column(self.slots, path)

    def counts(self, path: str) -> NDArray[np.int64]:
        """[clients, weights]: stored entries of the mask or model at a path ("model"), weight by weight."""
        return self.store.counts(self.slots, path)

    def distinct(self) -> list[int]:
        """The slots of all clients, each once, in the order of clients."""
        found, first = np.unique(self.slots, return_index=True)
        slots: list[int] = found[np.argsort(first)].tolist()
        return slots

    def kinds(self) -> list[int]:
        """A client of every Form that is there."""
        _, first = np.unique(self.store.forms(self.slots), return_index=True)
        clients: list[int] = first.tolist()
        return clients

    def _there(self, k: int) -> None:
        if not 0 <= k < len(self):
            raise IndexError(f"expected a client from 0 to {len(self) - 1}, got {k}")

    def _slot(self, k: int) -> int:
        self._there(k)
        slot = int(self.slots[k])
        if slot == _GONE:
            version = self.versions[k]
            raise StoreError(f"expected client {k} at version {version}, got none: its last reader is done")
        return slot


class Lying(Generic[C]):
    """A base.Ref to a value in a store. Where it is sent, the value goes with it."""

    __slots__ = ("_clients", "client")

    def __init__(self, clients: Stored[C], client: int) -> None:
        self._clients, self.client = clients, client

    @property
    def version(self) -> int:
        return int(self._clients.versions[self.client])

    def get(self) -> C:
        value: C = self._clients.store.read(self._clients._slot(self.client))
        return value

    def __reduce__(self) -> Any:
        return Held, (self.client, self.version, self._clients[self.client])


def _part(form: Form, path: str) -> Any:
    """What the tree of a form has at a path."""
    tree = form.tree
    for name in path.split(".") if path else ():
        if tree is None:
            return None
        _, kind, parts = tree
        tree = parts[[*kind.__dataclass_fields__].index(name)]
    return tree


def _at(form: Form, path: str) -> tuple[str | None, int]:
    """Kind and number of a number."""
    found = _part(form, path)
    return (None, 0) if found is None else (form.numbers[found[1]], found[1])


def _mask_at(form: Form, path: str) -> int:
    kind, i = _part(form, path)
    mask: int = form.models[i] if kind == "model" else i
    return mask
