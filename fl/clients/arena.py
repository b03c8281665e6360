"""Room for blobs of bytes, in memory or in files that are mapped into it.

Blobs are appended to a chunk, one after the other, and never move or change. In large arenas one that is
dropped gives its pages back at once; a chunk whose blobs are all dropped goes as a whole. Files have no name
(they are gone with the process, however it ends) and may hold more than memory does: the system writes pages
out and reads them again.
"""

import errno
import mmap
import os
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fl.errors import StoreError

ALIGNED = 8
CHUNK = 1 << 28  # bytes of a chunk: address space, of which only what was written takes memory or disk
_SMALL = 1 << 24  # of a chunk in memory
# From so many bytes on, a blob that is dropped gives its pages back at once. Below, what somebody still looks
# at stays as it is until its chunk goes.
LARGE = 1 << 28
_PAGE = mmap.PAGESIZE


class Place(NamedTuple):
    """Where a blob lies."""

    chunk: int
    offset: int


class _Chunk:
    """`live`: blobs that touch each page; `blobs`: those that are there at all."""

    def __init__(self, size: int, folder: Path | None) -> None:
        self.size, self.end, self.blobs = size, 0, 0
        self.live = np.zeros(-(-size // _PAGE), np.int32)
        self.in_file = folder is not None
        if folder is None:
            self.map = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        else:
            with tempfile.TemporaryFile(dir=folder, buffering=0) as file:  # without a name
                os.ftruncate(file.fileno(), size)
                self.map = mmap.mmap(file.fileno(), size)
                self.handle = os.dup(file.fileno())
        self.bytes: NDArray[Any] = np.frombuffer(self.map, np.uint8)
        self.words = torch.from_numpy(self.bytes.view(np.int64))
        self.floats = torch.from_numpy(self.bytes.view(np.float32))

    def reserve(self, offset: int, length: int) -> None:
        """Take the blocks of a file now: without them a write to the map would kill the process."""
        if self.in_file and length:
            os.posix_fallocate(self.handle, offset, length)

    def drop(self, first: int, last: int) -> None:
        """Give pages back, the last one included."""
        how = mmap.MADV_REMOVE if self.in_file else mmap.MADV_DONTNEED
        self.map.madvise(how, first * _PAGE, min((last + 1) * _PAGE, self.size) - first * _PAGE)

    def close(self) -> None:
        """Nothing refers to it; the map goes when nobody looks at it any more."""
        if self.in_file:
            os.close(self.handle)


class Arena:
    """Blobs by `Place`. `folder`: of its files; None: in memory. One thread writes, any may read."""

    def __init__(self, folder: Path | None = None, chunk: int = CHUNK) -> None:
        self._folder, self._size = folder, chunk if folder is not None else min(chunk, _SMALL)
        self._chunks: dict[int, _Chunk] = {}
        self._last = -1
        self.nbytes = 0  # of all blobs that are there

    def __del__(self) -> None:
        for chunk in self._chunks.values():
            chunk.close()

    def append(self, parts: Sequence[NDArray[Any]], length: int) -> Place:
        """Write a blob of `length` bytes: flat arrays, one after the other, each from a multiple of ALIGNED
        on."""
        chunk = self._room(length)
        at = offset = chunk.end
        try:
            chunk.reserve(offset, length)
        except OSError as error:
            raise StoreError(self._full(error, length)) from error
        for part in parts:
            chunk.bytes[at : at + part.nbytes] = part.view(np.uint8)
            at += aligned(part.nbytes)
        if length:
            first, last = offset // _PAGE, (offset + length - 1) // _PAGE
            chunk.live[first : last + 1] += 1
        chunk.end, chunk.blobs = offset + aligned(length), chunk.blobs + 1
        self.nbytes += length
        return Place(self._last, offset)

    def words(self, place: Place, start: int, count: int) -> Tensor:
        """int64, `count` of them from byte `start` of a blob on: where they lie."""
        at = (place.offset + start) // 8
        return self._chunks[place.chunk].words[at : at + count]

    def floats(self, place: Place, start: int, count: int) -> Tensor:
        """float32, likewise."""
        at = (place.offset + start) // 4
        return self._chunks[place.chunk].floats[at : at + count]

    def bytes(self, place: Place, start: int, count: int) -> NDArray[np.uint8]:
        """Bytes, likewise."""
        at = place.offset + start
        found: NDArray[np.uint8] = self._chunks[place.chunk].bytes[at : at + count]
        return found

    def drop(self, blobs: Iterable[tuple[int, int, int]]) -> None:
        """Forget blobs: chunk, offset and length of each. What was seen of them is not to be read again."""
        large = self._written >= LARGE
        for number, offset, length in blobs:
            chunk = self._chunks[number]
            chunk.blobs -= 1
            self.nbytes -= length
            if not chunk.blobs and number != self._last:
                self._chunks.pop(number).close()
            elif length:
                _forget(chunk, offset, length, large)

    @property
    def _written(self) -> int:
        """Bytes of all chunks, with what was dropped."""
        return sum(chunk.end for chunk in self._chunks.values())

    def _room(self, length: int) -> _Chunk:
        chunk = self._chunks.get(self._last)
        if chunk is not None and chunk.end + length <= chunk.size:
            return chunk
        if chunk is not None and not chunk.blobs:
            self._chunks.pop(self._last).close()
        size = -(-max(self._size, length) // _PAGE) * _PAGE
        try:
            made = _Chunk(size, self._folder)
        except OSError as error:
            raise StoreError(self._full(error, length)) from error
        self._last += 1
        self._chunks[self._last] = made
        return made

    def _full(self, error: OSError, length: int) -> str:
        where = "memory" if self._folder is None else f"a file in {self._folder}"
        why = error.strerror or str(error)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            why += f"; the clients there take {self.nbytes / 1e6:,.1f} MB"
        return f"expected room for a client of {length:,} bytes in {where}, got: {why}"


def aligned(length: int) -> int:
    """The next multiple of ALIGNED."""
    return -(-length // ALIGNED) * ALIGNED


def _forget(chunk: _Chunk, offset: int, length: int, drop: bool) -> None:
    """Drop the pages that this blob had for itself, or last."""
    first, last = offset // _PAGE, (offset + length - 1) // _PAGE
    live = chunk.live
    live[first : last + 1] -= 1
    if live[first]:
        first += 1
    if last >= first and live[last]:
        last -= 1
    if drop and last >= first:
        chunk.drop(first, last)
