"""A population in a store (store.py): the slot and the version of every client, two columns."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic

import numpy as np
from numpy.typing import NDArray

from fl.clients.base import C, pairs_of
from fl.clients.memory import Held
from fl.errors import StoreError

if TYPE_CHECKING:
    from fl.clients.store import Store

Slots = NDArray[np.int32]
_GONE = -1


class Stored(Generic[C]):
    """base.Clients in a `Store`."""

    def __init__(self, store: "Store", slots: Slots, versions: NDArray[np.int64]) -> None:
        self.store, self.slots, self.versions = store, slots, versions
        self._readers: NDArray[np.int64] | None = None
        store.hold(slots)

    def __del__(self) -> None:
        if hasattr(self, "_readers"):
            self.store.leave_later(self.slots[self.slots != _GONE])

    def __len__(self) -> int:
        return len(self.slots)

    def __getitem__(self, k: int, /) -> C:
        value: C = self.store.read(self._slot(k))
        return value

    def __iter__(self) -> Iterator[C]:
        return (self[k] for k in range(len(self)))

    def __repr__(self) -> str:
        return f"Stored({len(self):,} clients, versions up to {max(self.versions, default=0)})"

    def ref(self, k: int) -> "Lying[C]":
        """Client k's value, where it lies."""
        self._slot(k)
        return Lying(self, int(k))

    def with_(self, changed: Mapping[int, C] | Iterable[tuple[int, C]]) -> "Stored[C]":
        """The population with other values of some clients, each written as it comes."""
        store = self.store
        store.tidy()
        made: dict[int, int] = {}
        try:
            for k, value in pairs_of(changed):
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
        slots[who] = np.fromiter(made.values(), np.int32, len(made))
        versions[who] += 1
        return Stored(store, slots, versions)

    def spend(self, readers: NDArray[np.int64]) -> None:
        """From now on a value is dropped once it was read (`read_by`) as often as `readers` says; 0: never.
        There is no way back: whoever does that can make the population again."""
        if self._readers is not None or readers.shape != self.slots.shape:
            raise ValueError(f"expected a count per client, once, got {readers.shape} of {len(self)} clients")
        self.slots, self._readers = self.slots.copy(), readers.copy()

    def read_by(self, givers: NDArray[Any]) -> None:
        """Readers that are done: each has read one of these."""
        assert self._readers is not None, "nobody spends this population"
        np.subtract.at(self._readers, givers, 1)
        over = np.unique(givers)
        over = over[self._readers[over] == 0]
        slots = self.slots[over]
        self.slots[over] = _GONE
        self.store.leave(slots)

    def column(self, path: str) -> list[Any]:
        """The number at a path ("sent.nbytes") of every client; None where there is none."""
        return self.store.column(self.slots, _names(path))

    def counts(self, path: str) -> NDArray[np.int64]:
        """[clients, weights]: stored entries of the mask or model at a path ("model"), weight by weight."""
        return self.store.counts(self.slots, _names(path))

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
        return self._clients[self.client]

    def part(self, path: str) -> Any:
        """The part of it at a path ("sent.model"): the others are not made."""
        return self._clients.store.read(self._clients._slot(self.client), _names(path))

    def __reduce__(self) -> Any:
        return Held, (self.client, self.version, self.get())


def _names(path: str) -> Sequence[str]:
    return path.split(".") if path else ()
