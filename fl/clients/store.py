"""Where the populations of a run lie: records in an arena (arena.py), and a table of their numbers.

    slot    one client at one version: where its record lies, its Form, its numbers, what its masks store, and
            how many populations have it. Those that none has are dropped

There is no Python object per client: values are made when somebody reads them, without a copy, and stay as
they are for as long as somebody has them.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import sparse_engine as se
from fl.clients.arena import CHUNK, Arena, Place
from fl.clients.base import C
from fl.clients.record import Form, Reader, part, take
from fl.clients.stored import Slots, Stored

_COLUMNS = {"f": np.float64, "i": np.int64, "b": np.bool_}
_FEW = 64  # slots at first


class Store:
    """`folder`: of files; None: in memory. `half`: models' values are rounded to bfloat16."""

    def __init__(
        self, layout: se.Layout, folder: Path | None = None, chunk: int = CHUNK, half: bool = False
    ) -> None:
        self.layout, self.half = layout, half
        self._arena = Arena(folder, chunk)
        self._reader = Reader(self._arena, layout, half)
        self._forms: list[Form] = []
        self._numbered: dict[Form, int] = {}
        self._places = np.zeros((_FEW, 2), np.int32)  # chunk and row
        self._form, self._holders = np.zeros(_FEW, np.int32), np.zeros(_FEW, np.int32)
        self._numbers = np.zeros((_FEW, 0), np.int64)
        self._counts = np.zeros((_FEW, 0), np.uint32)  # stored entries of every weight, mask by mask
        self._free: list[int] = [*range(_FEW)][::-1]
        self._dying: deque[Slots] = deque()  # of populations that are gone

    def __call__(self, values: Iterable[C], versions: Iterable[int] | None = None) -> Stored[C]:
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
        return Stored(self, np.array(slots, np.int32), np.array(told, np.int64))

    @property
    def nbytes(self) -> int:
        """Of all records, without the table."""
        return self._arena.nbytes

    @property
    def overhead(self) -> int:
        """Bytes of the table."""
        table = (self._places, self._form, self._holders, self._numbers, self._counts)
        return sum(column.nbytes for column in table) + 8 * len(self._free)

    def add(self, value: Any) -> int:
        """The slot of a new record, which nobody has yet."""
        record = take(value, self.half)
        place = self._arena.put(record.parts, record.length)
        if not self._free:
            self._grow()
        slot = self._free.pop()
        if record.form not in self._numbered:
            self._numbered[record.form] = len(self._forms)
            self._forms.append(record.form)
        self._numbers = _wide(self._numbers, len(record.numbers))
        self._counts = _wide(self._counts, len(record.counts))
        self._places[slot] = place
        self._form[slot] = self._numbered[record.form]
        self._numbers[slot, : len(record.numbers)] = record.numbers
        self._counts[slot, : len(record.counts)] = record.counts
        return slot

    def read(self, slot: int, path: Sequence[str] = ()) -> Any:
        """What lies there, or the part of it at `path`."""
        form, place = self._forms[self._form[slot]], Place(*self._places[slot].tolist())
        return self._reader.value(form, self._numbers[slot], self._counts[slot], place, path)

    def forms(self, slots: Slots) -> NDArray[np.int32]:
        """The number of each one's Form."""
        return self._form[slots]

    def hold(self, slots: Slots) -> None:
        """One more population has these."""
        self._count(slots, 1)

    def leave(self, slots: Slots) -> None:
        """One population less has these. Those that none has any more are dropped."""
        self._count(slots, -1)
        found = np.unique(slots)
        self._drop(found[self._holders[found] == 0])

    def leave_later(self, slots: Slots) -> None:
        """The same with the next `tidy`: of a population that goes in any thread, at any time."""
        self._dying.append(slots)

    def tidy(self) -> None:
        """Drop what only populations had that are gone."""
        while self._dying:
            self.leave(self._dying.popleft())
        self._arena.tidy()

    def discard(self, slots: Iterable[int]) -> None:
        """Drop slots that nobody ever had."""
        self._drop(np.array([*slots], np.int64))

    def column(self, slots: Slots, path: Sequence[str]) -> list[Any]:
        """The number at a path of every slot; None where there is none."""
        forms = self._form[slots]
        found: list[Any] = [None] * len(slots)
        for one in np.unique(forms).tolist():
            tree = part(self._forms[one], path)
            if tree is None:
                continue
            kind, at = self._forms[one].numbers[tree[1]], tree[1]
            where = np.flatnonzero(forms == one)
            bits = self._numbers[slots[where], at]
            numbers = bits.view(np.float64 if kind == "f" else np.int64).astype(_COLUMNS[kind]).tolist()
            if len(where) == len(slots):
                return numbers
            for k, value in zip(where.tolist(), numbers, strict=True):
                found[k] = value
        return found

    def counts(self, slots: Slots, path: Sequence[str]) -> NDArray[np.int64]:
        """[slots, weights]: stored entries of the mask or model at a path, weight by weight."""
        width, forms = len(self.layout.segments), self._form[slots]
        made = np.empty((len(slots), width), np.int64)
        for one in np.unique(forms).tolist():
            kind, i = part(self._forms[one], path)
            mask = self._forms[one].models[i] if kind == "model" else i
            where = forms == one
            made[where] = self._counts[slots[where], mask * width : (mask + 1) * width]
        return made

    def _count(self, slots: Slots, change: int) -> None:
        if len(slots):
            times = np.bincount(slots, minlength=len(self._holders))
            self._holders += (change * times).astype(np.int32)

    def _drop(self, slots: NDArray[Any]) -> None:
        self._arena.tidy()
        for place in self._places[slots].tolist():
            self._arena.drop(Place(*place))
        self._free.extend(slots.tolist())

    def _grow(self) -> None:
        """An eighth more, so that the table is never much larger than what it says."""
        old = len(self._holders)
        new = old + max(_FEW, old // 8)

        def larger(column: NDArray[Any]) -> NDArray[Any]:
            made = np.zeros((new, *column.shape[1:]), column.dtype)
            made[:old] = column
            return made

        self._places, self._form, self._holders = map(larger, (self._places, self._form, self._holders))
        self._numbers, self._counts = larger(self._numbers), larger(self._counts)
        self._free.extend(range(new - 1, old - 1, -1))


def _wide(table: NDArray[Any], columns: int) -> NDArray[Any]:
    """The table with at least so many columns."""
    more = columns - table.shape[1]
    return table if more <= 0 else np.hstack([table, np.zeros((len(table), more), table.dtype)])
