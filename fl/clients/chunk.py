"""A piece of memory, or a file that is mapped into it, with rows of one size.

A file has no name: it is gone with the process, however that ends. A row of a file takes its disk before it
is written, so a full disk is an OSError, and no signal that ends the process.
"""

import mmap
import os
import tempfile
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_PAGE = mmap.PAGESIZE


class Chunk:
    """`size` is that of a row. Rows given back last are taken first: they still have their pages."""

    def __init__(self, size: int, rows: int, folder: Path | None = None) -> None:
        self.size, self.rows, self.used = size, rows, 0
        self._file: int | None = None
        whole = -(-size * rows // _PAGE) * _PAGE
        if folder is None:
            self._map = mmap.mmap(-1, whole, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        else:
            with tempfile.TemporaryFile(dir=folder, buffering=0) as file:  # without a name
                os.ftruncate(file.fileno(), whole)
                self._map = mmap.mmap(file.fileno(), whole)
                self._file = os.dup(file.fileno())
        self.bytes: NDArray[np.uint8] = np.frombuffer(self._map, np.uint8)
        self.address = self.bytes.ctypes.data
        self._cold = [*range(rows)][::-1]  # never used, or given back to the system
        self._warm: list[int] = []

    def __del__(self) -> None:
        if getattr(self, "_file", None) is not None:
            os.close(self._file)  # type: ignore[arg-type]

    @property
    def full(self) -> bool:
        return self.used == self.rows

    @property
    def warm(self) -> int:
        """Bytes of idle rows that have their pages."""
        return len(self._warm) * self.size

    def take(self) -> int:
        """A row that nobody has. OSError: the disk is full."""
        if not self._warm:
            if self._file is not None:
                os.posix_fallocate(self._file, self._cold[-1] * self.size, self.size)
            self._warm.append(self._cold.pop())
        self.used += 1
        return self._warm.pop()

    def free(self, row: int) -> None:
        """Nobody has this one any more."""
        self.used -= 1
        self._warm.append(row)

    def cool(self) -> None:
        """Give the pages of idle rows back to the system, but those that a row shares with another."""
        how = mmap.MADV_DONTNEED if self._file is None else mmap.MADV_REMOVE
        for row in self._warm:
            first, last = -(-row * self.size // _PAGE), (row + 1) * self.size // _PAGE
            if last > first:
                self._map.madvise(how, first * _PAGE, (last - first) * _PAGE)
        self._cold += self._warm
        self._warm = []


class Look:
    """Makes an array of a row's words, and says when that and all that was made of it is gone."""

    __slots__ = ("__array_interface__", "_chunk", "_over", "_place")

    def __init__(self, chunk: Chunk, row: int, place: Any, over: deque[Any]) -> None:
        self._chunk, self._place, self._over = chunk, place, over
        self.__array_interface__ = {
            "version": 3,
            "typestr": "<i8",
            "shape": (chunk.size // 8,),
            "data": (chunk.address + row * chunk.size, False),
        }

    def __del__(self) -> None:
        self._over.append(self._place)
