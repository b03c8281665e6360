"""Room for records of bytes, in memory or in files that are mapped into it, which may be larger.

A record takes a row of the next size up (at most a 32nd of it is wasted) in a chunk (chunk.py). A row that is
dropped is used again by the next record of that size. Where many rows are idle, as when records become
smaller, their pages go back to the system.

`look` gives the words of a record where they lie. What is made of them (tensors, views of views) holds the
row: if it is dropped meanwhile, it is used again only when the last of these is gone.
"""

import errno
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fl.clients.chunk import Chunk, Look
from fl.errors import StoreError

ALIGNED = 8
CHUNK = 1 << 22  # bytes of the first chunks
_LARGEST, _SHARE = 1 << 28, 16  # of later ones: this part of all, up to so many: every file is open
_IDLE, _IDLE_SHARE = 1 << 25, 16  # idle bytes that keep their pages: so many, or this part of all


class Place(NamedTuple):
    """Where a record lies."""

    chunk: int
    row: int


class Arena:
    """Records by `Place`. `folder`: of its files; None: in memory. One thread writes, any may look."""

    def __init__(self, folder: Path | None = None, chunk: int = CHUNK) -> None:
        self._folder, self._least = folder, chunk
        self._chunks: dict[int, Chunk] = {}
        self._open: dict[int, list[int]] = {}  # row size -> chunks with idle rows
        self._made, self._warm = 0, 0
        self._lock = threading.Lock()  # of the next two
        self._looks: dict[Place, int] = {}
        self._doomed: set[Place] = set()  # dropped while somebody looks
        self._over: deque[Place] = deque()  # looks that ended: in any thread, at any time
        self.nbytes = 0  # of rows that are in use

    def put(self, parts: Sequence[NDArray[Any]], length: int) -> Place:
        """Write a record of `length` bytes: flat arrays, each from a multiple of ALIGNED on."""
        self.tidy()
        number, row = self._row(_size(length), length)
        chunk = self._chunks[number]
        at = row * chunk.size
        for part in parts:
            chunk.bytes[at : at + part.nbytes] = part.view(np.uint8)
            at += aligned(part.nbytes)
        return Place(number, row)

    def look(self, place: Place) -> NDArray[np.int64]:
        """The words of a record, where they lie."""
        with self._lock:
            self._looks[place] = self._looks.get(place, 0) + 1
        return np.asarray(Look(self._chunks[place.chunk], place.row, place, self._over))

    def drop(self, place: Place) -> None:
        """Forget a record: now, or when nobody looks at it any more."""
        with self._lock:
            if place in self._looks:
                self._doomed.add(place)
                return
        self._free(place)

    def tidy(self) -> None:
        """Free what was dropped while somebody looked."""
        while self._over:
            place = self._over.popleft()
            with self._lock:
                self._looks[place] -= 1
                gone = not self._looks[place]
                if gone:
                    del self._looks[place]
                    gone = place in self._doomed
                    self._doomed.discard(place)
            if gone:
                self._free(place)

    def _free(self, place: Place) -> None:
        chunk = self._chunks[place.chunk]
        if chunk.full:
            self._open.setdefault(chunk.size, []).append(place.chunk)
        chunk.free(place.row)
        self.nbytes -= chunk.size
        self._warm += chunk.size
        if self._warm > max(_IDLE, self.nbytes // _IDLE_SHARE):
            self._cool()

    def _cool(self) -> None:
        """Give idle pages back; chunks without records go as a whole."""
        for numbers in self._open.values():
            for number in numbers:
                if self._chunks[number].used:
                    self._chunks[number].cool()
                else:
                    del self._chunks[number]
            numbers[:] = [number for number in numbers if number in self._chunks]
        self._warm = 0

    def _row(self, size: int, length: int) -> tuple[int, int]:
        """The chunk and number of a row that is free now."""
        numbers = self._open.setdefault(size, [])
        try:
            if not numbers:
                number = self._new(size)
                numbers.append(number)
            number = numbers[-1]
            chunk = self._chunks[number]
            warm = chunk.warm
            row = chunk.take()
        except OSError as error:
            raise StoreError(self._refused(error, length)) from error
        self._warm -= warm - chunk.warm
        if chunk.full:
            numbers.pop()
        self.nbytes += size
        return number, row

    def _new(self, size: int) -> int:
        room = min(_LARGEST, max(self._least, self.nbytes // _SHARE))
        self._chunks[self._made] = Chunk(size, max(1, room // size), self._folder)
        self._made += 1
        return self._made - 1

    def _refused(self, error: OSError, length: int) -> str:
        where = "memory" if self._folder is None else f"a file in {self._folder}"
        why = error.strerror or str(error)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            why += f"; the clients there take {self.nbytes / 1e6:,.1f} MB"
        return f"expected room for a client of {length:,} bytes in {where}, got: {why}"


def aligned(length: int) -> int:
    """The next multiple of ALIGNED."""
    return -(-length // ALIGNED) * ALIGNED


def _size(length: int) -> int:
    """The size of a row for so many bytes: 32 sizes from one power of two to the next."""
    step = max(ALIGNED, 1 << max(0, length.bit_length() - 6))
    return max(ALIGNED, -(-length // step) * step)
