"""Global memory: allocations with exact ends, alignment, which bytes were ever written, and races in a
launch.

An allocation is the storage of a tensor, at its address in this process. Every access has to lie in one
allocation.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from virtual_card.faults import Trap
from virtual_card.numbers import UNSIGNED
from virtual_card.races import Shadow, Who


@dataclass
class Allocation:
    """A piece of memory that a tensor owns."""

    base: int
    data: NDArray[np.uint8]
    name: str  # "float32 [64]"
    written: NDArray[np.bool_]  # which bytes hold something
    alive: Callable[[], bool]  # has anybody a tensor there?
    shadow: Shadow | None = None

    @property
    def end(self) -> int:
        return self.base + len(self.data)

    @cached_property
    def words(self) -> dict[int, NDArray]:
        """The data as unsigned integers of 1, 2, 4 and 8 bytes."""
        n = len(self.data)
        return {size: self.data[: n // size * size].view(UNSIGNED[8 * size]) for size in (1, 2, 4, 8)}


@dataclass
class Memory:
    """All allocations of the card."""

    allocations: dict[int, Allocation] = field(default_factory=dict)

    def begin(self) -> None:
        """A launch begins: what came before it is in order, what was freed is memory no more."""
        self.allocations = {base: each for base, each in self.allocations.items() if each.alive()}
        self._sorted = [self.allocations[base] for base in sorted(self.allocations)]
        self._bases = np.array([each.base for each in self._sorted], np.int64)
        self._ends = np.array([each.end for each in self._sorted], np.int64)

    def end(self) -> tuple[int, int]:
        """It ends: bytes of the sectors that it read and wrote, each once."""
        read = written = 0
        for each in self._sorted:
            if each.shadow is not None:
                sectors = each.shadow.sectors()
                read, written = read + 32 * sectors[0], written + 32 * sectors[1]
                each.shadow = None
        return read, written

    def load(
        self, address: NDArray[np.int64], size: int, who: Who
    ) -> tuple[NDArray, NDArray[np.bool_] | None]:
        """uint8 [k, size], and the lanes whose bytes were never written."""
        out, unknown = np.empty((len(address), size), np.uint8), None
        for each, some in self._owners(address, size, who, "reads"):
            at = address[some] - each.base
            self._shadow(each).load(at, size, who.of(some), f"memory of {each.name}")
            unit = min(size, 8)
            index = at[:, None] // unit + np.arange(size // unit)
            out[some] = each.words[unit][index].view(np.uint8)
            holes = ~each.written[at[:, None] + np.arange(size)].all(1)
            if holes.any():
                unknown = np.zeros(len(address), bool) if unknown is None else unknown
                unknown[some] = holes
        return out, unknown

    def store(self, address: NDArray[np.int64], data: NDArray[np.uint8], who: Who) -> None:
        """Write uint8 [k, size]."""
        size = data.shape[1]
        for each, some in self._owners(address, size, who, "writes"):
            at = address[some] - each.base
            self._shadow(each).store(at, size, who.of(some), f"memory of {each.name}")
            cells = at[:, None] + np.arange(size)
            each.data[cells] = data[some]
            different = (each.data[cells] != data[some]).any(1)
            if different.any():
                lane = who.of(some).lane[int(different.argmax())]
                raise Trap(
                    f"race: lanes of one warp write different values to one place of {each.name}", lane
                )
            each.written[cells] = True

    def atomic(
        self, address: NDArray[np.int64], size: int, who: Who
    ) -> list[tuple[NDArray, NDArray, NDArray]]:
        """(words, index of each lane's word, lanes) per allocation, for the caller to change."""
        found = []
        for each, some in self._owners(address, size, who, "changes"):
            at = address[some] - each.base
            mine = who.of(some)
            self._shadow(each).atomic(at, size, mine, f"memory of {each.name}")
            holes = ~each.written[at[:, None] + np.arange(size)].all(1)
            if holes.any():
                raise Trap(
                    f"changes memory of {each.name} that was never written", mine.lane[int(holes.argmax())]
                )
            found.append((each.words[size], at // size, some))
        return found

    def _shadow(self, each: Allocation) -> Shadow:
        if each.shadow is None:
            each.shadow = Shadow(len(each.data))
        return each.shadow

    def _owners(
        self, address: NDArray[np.int64], size: int, who: Who, does: str
    ) -> list[tuple[Allocation, NDArray]]:
        """(allocation, which of the lanes are in it); traps on one that is in none, or is not aligned."""
        place = np.searchsorted(self._bases, address, "right") - 1
        inside = place >= 0
        if len(self._ends):
            inside &= address + size <= self._ends[place]
        if not inside.all():
            i = int((~inside).argmax())
            raise Trap(f"{does} {size} bytes {self._near(int(address[i]))}", who.lane[i])
        if (address % size).any():
            i = int((address % size != 0).argmax())
            raise Trap(f"misaligned: {does} {size} bytes {self._near(int(address[i]))}", who.lane[i])
        if len(place) == 0:
            return []
        if (place == place[0]).all():
            return [(self._sorted[place[0]], np.arange(len(place)))]
        return [(self._sorted[i], np.flatnonzero(place == i)) for i in np.unique(place)]

    def _near(self, address: int) -> str:
        place = int(np.searchsorted(self._bases, address, "right")) - 1
        if place < 0:
            return "out of bounds: no tensor is there or before it"
        owner = self._sorted[place]
        past = address - owner.end
        if past < 0:
            return f"at byte {address - owner.base} of {owner.name}, which has {len(owner.data)}"
        return f"out of bounds: {past} bytes past the end of {owner.name}"
