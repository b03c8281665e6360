"""Shared memory of the programs that run together, and copies into it that are still under way
(cp.async).

A copy reads global memory when it is issued and arrives as late as it may: when its thread waits for it.
Until then nobody may touch the bytes that it will write.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from virtual_card.faults import Trap
from virtual_card.races import Shadow, Who

_WHERE = "shared memory"


class Shared:
    """`size` bytes per program, one after another in one array; addresses count from 0 in each."""

    def __init__(self, programs: int, size: int, noise: np.random.Generator) -> None:
        self.limit, self.size = size, -(-size // 16) * 16  # what a program may touch, and has here
        total = programs * self.size
        self.data = noise.integers(0, 256, total, dtype=np.uint8)
        self.written, self.flying = np.zeros(total, bool), np.zeros(total, bool)
        self.shadow = Shadow(total)

    def load(
        self, local: NDArray, address: NDArray[np.int64], size: int, who: Who
    ) -> tuple[NDArray, NDArray[np.bool_] | None]:
        """uint8 [k, size], and the lanes whose bytes were never written."""
        at = self._place(local, address, size, who, "reads")
        self.shadow.load(at, size, who, _WHERE)
        cells = at[:, None] + np.arange(size)
        holes = ~self.written[cells].all(1)
        return self.data[cells], holes if holes.any() else None

    def store(self, local: NDArray, address: NDArray, data: NDArray, who: Who, holes: NDArray | None) -> None:
        """Write uint8 [k, size]; `holes`: lanes that write noise."""
        size = data.shape[1]
        at = self._place(local, address, size, who, "writes")
        cells = at[:, None] + np.arange(size)
        harmless = (self.data[cells] == data).all(1) & self.written[cells].all(1)
        self.data[cells] = data
        lost = (self.data[cells] != data).any(1)
        if lost.any():
            raise Trap(
                "race: lanes write different values to one place of shared memory",
                who.lane[int(lost.argmax())],
            )
        self.shadow.store(at, size, who, _WHERE, harmless)
        self.written[cells] = True if holes is None else ~holes[:, None]

    def atomic(self, local: NDArray, address: NDArray, size: int, who: Who) -> NDArray[np.int64]:
        """Where each lane's number is, in units of its size."""
        at = self._place(local, address, size, who, "changes")
        self.shadow.atomic(at, size, who, _WHERE)
        holes = ~self.written[at[:, None] + np.arange(size)].all(1)
        if holes.any():
            raise Trap("changes shared memory that was never written", who.lane[int(holes.argmax())])
        return at // size

    def _place(self, local: NDArray, address: NDArray, size: int, who: Who, does: str) -> NDArray[np.int64]:
        wrong = (address < 0) | (address + size > self.limit)
        if wrong.any():
            i = int(wrong.argmax())
            sentence = (
                f"{does} {size} bytes out of bounds: at byte {address[i]} of {self.limit} of shared memory"
            )
            raise Trap(sentence, who.lane[i])
        if (address % size).any():
            i = int((address % size != 0).argmax())
            raise Trap(f"misaligned: {does} {size} bytes at byte {address[i]} of shared memory", who.lane[i])
        at = local * self.size + address
        flying = self.flying[at]
        if flying.any():
            sentence = f"{does} shared memory into which a copy is still under way (cp.async without a wait)"
            raise Trap(sentence, who.lane[int(flying.argmax())])
        return at


@dataclass
class _Copy:
    address: NDArray[np.int64]
    data: NDArray[np.uint8]
    holes: NDArray[np.bool_] | None
    waiting: NDArray[np.bool_]  # lanes whose copy has not arrived
    group: NDArray[np.int32]  # number of the group of each lane; -1: not committed


class Copies:
    """Copies under way, in groups that each thread commits and waits for by count."""

    def __init__(self, lanes: int) -> None:
        self.committed = np.zeros(lanes, np.int32)
        self.flying: list[_Copy] = []

    def issue(self, address: NDArray, data: NDArray, holes: NDArray | None, mask: NDArray[np.bool_]) -> None:
        group = np.full(len(address), -1, np.int32)
        self.flying.append(_Copy(address, data, holes, mask.copy(), group))

    def commit(self, mask: NDArray[np.bool_]) -> None:
        for copy in self.flying:
            new = copy.waiting & mask & (copy.group < 0)
            copy.group[new] = self.committed[new]
        self.committed[mask] += 1

    def due(self, mask: NDArray[np.bool_], keep: int) -> list[tuple[_Copy, NDArray[np.bool_]]]:
        """(copy, lanes whose data arrive now): all but the last `keep` groups of the lanes in `mask`."""
        found = []
        for copy in self.flying:
            arrives = copy.waiting & mask & (copy.group >= 0) & (copy.group < self.committed - keep)
            if arrives.any():
                copy.waiting &= ~arrives
                found.append((copy, arrives))
        self.flying = [copy for copy in self.flying if copy.waiting.any()]
        return found
