"""Who touched which piece of memory, and whether two of them did so in no order.

An agent is a warp of a program in an epoch: the stretch between two barriers of its program. Two accesses
of which one writes are ordered if one agent made both, or if a barrier of their common program lies between
them. Programs of one launch are never ordered. Atomics may meet each other, and nothing else.

Not seen: lanes of one warp that pass something through memory without __syncwarp, which Triton does not
write.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from virtual_card.faults import Trap

_MANY = -1


class Who(NamedTuple):
    """The lanes of an access, each [k]."""

    lane: NDArray[np.int64]
    program: NDArray[np.int64]
    warp: NDArray[np.int32]
    epoch: NDArray[np.int32]

    def of(self, some: NDArray) -> "Who":
        return Who(*(x[some] for x in self))


class Shadow:
    """The last writer and the readers of each `unit` bytes of memory: 4, or 1 once single bytes are used."""

    def __init__(self, size: int, unit: int = 4) -> None:
        self.unit = unit
        pieces = -(-size // unit)
        self.writer, self.reader = np.zeros(pieces, np.int32), np.zeros(pieces, np.int32)  # program + 1, or 0
        self.writer_warp, self.reader_warp = np.zeros(pieces, np.int16), np.zeros(pieces, np.int16)
        self.writer_epoch, self.reader_epoch = np.zeros(pieces, np.int32), np.zeros(pieces, np.int32)
        self.written_atomically = np.zeros(pieces, bool)

    def _pieces(self, at: NDArray[np.int64], size: int) -> NDArray[np.int64]:
        """[k, pieces of an access]"""
        if size < self.unit:
            for name, array in vars(self).items():
                if name != "unit":
                    setattr(self, name, np.repeat(array, self.unit))
            self.unit = 1
        return at[:, None] // self.unit + np.arange(max(1, size // self.unit))

    def load(self, at: NDArray[np.int64], size: int, who: Who, where: str) -> None:
        """Lanes `who` read `size` bytes at `at`."""
        cells = self._pieces(at, size)
        mine, warp, epoch = _columns(who)
        self._ordered(
            self._after_write(cells, mine, warp, epoch), who, f"reads {where} that another {{}} wrote"
        )
        self._join("reader", cells, mine, warp, epoch)

    def store(
        self, at: NDArray[np.int64], size: int, who: Who, where: str, harmless: NDArray | None = None
    ) -> None:
        """They write it; `harmless` lanes write what is there already."""
        cells = self._pieces(at, size)
        mine, warp, epoch = _columns(who)
        hurts = True if harmless is None else ~harmless[:, None]
        self._ordered(
            self._after_write(cells, mine, warp, epoch) & hurts,
            who,
            f"writes {where} that another {{}} wrote",
        )
        self._ordered(
            self._after_read(cells, mine, warp, epoch) & hurts, who, f"writes {where} that another {{}} read"
        )
        self.writer[cells], self.writer_warp[cells], self.writer_epoch[cells] = mine, warp, epoch
        self.written_atomically[cells] = False
        if harmless is None:
            lost = (self.writer[cells] != mine) | (self.writer_warp[cells] != warp)
            self._ordered(lost, who, f"writes {where} that another {{}} writes")

    def atomic(self, at: NDArray[np.int64], size: int, who: Who, where: str) -> None:
        """They change it in one step that nothing can come between."""
        cells = self._pieces(at, size)
        mine, warp, epoch = _columns(who)
        plain = self._after_write(cells, mine, warp, epoch) & ~self.written_atomically[cells]
        self._ordered(plain, who, f"changes {where} atomically that another {{}} wrote")
        read = self._after_read(cells, mine, warp, epoch)
        self._ordered(read, who, f"changes {where} atomically that another {{}} read")
        self._join("writer", cells, mine, warp, epoch)
        self.written_atomically[cells] = True

    def sectors(self) -> tuple[int, int]:
        """32-byte sectors that were read, and written."""
        per = 32 // self.unit
        found = []
        for touched in (self.reader, self.writer):
            padded = np.zeros(-(-len(touched) // per) * per, bool)
            padded[: len(touched)] = touched != 0
            found.append(int(padded.reshape(-1, per).any(1).sum()))
        return found[0], found[1]

    def _join(self, role: str, cells: NDArray, mine: NDArray, warp: NDArray, epoch: NDArray) -> None:
        """Several may read, or change atomically: add these lanes to those who did."""
        program, warps, epochs = (getattr(self, role + part) for part in ("", "_warp", "_epoch"))
        before, alone = program[cells], epochs[cells] != epoch
        fresh = before == 0
        warps[cells] = np.where(fresh | alone | (warps[cells] == warp), warp, _MANY)
        program[cells] = np.where(fresh | (before == mine), mine, _MANY)
        epochs[cells] = epoch
        warps[cells[warps[cells] != warp]] = _MANY  # several of one instruction, too
        program[cells[program[cells] != mine]] = _MANY

    def _after_write(self, cells: NDArray, mine: NDArray, warp: NDArray, epoch: NDArray) -> NDArray[np.bool_]:
        writer = self.writer[cells]
        if not writer.any():
            return writer != 0
        unordered = (self.writer_warp[cells] != warp) & (self.writer_epoch[cells] == epoch)
        return (writer != 0) & ((writer != mine) | unordered)

    def _after_read(self, cells: NDArray, mine: NDArray, warp: NDArray, epoch: NDArray) -> NDArray[np.bool_]:
        reader = self.reader[cells]
        if not reader.any():
            return reader != 0
        unordered = (self.reader_warp[cells] != warp) & (self.reader_epoch[cells] == epoch)
        return (reader != 0) & ((reader != mine) | unordered)

    def _ordered(self, wrong: NDArray[np.bool_], who: Who, sentence: str) -> None:
        if wrong.any():
            lane = who.lane[int(wrong.any(1).argmax())]
            raise Trap(f"race: {sentence.format('warp or program')} with no barrier between", lane)


def _columns(who: Who) -> tuple[NDArray, NDArray, NDArray]:
    return (who.program[:, None] + 1).astype(np.int32), who.warp[:, None], who.epoch[:, None]
