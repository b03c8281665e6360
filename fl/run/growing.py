"""A file that only grows, and whose beginning nobody else may change: a checkpoint remembers a Mark of it.

The SHA-256 of all that was written is kept while writing, so that a mark costs no reading.
"""

import hashlib
import os
from pathlib import Path
from typing import NamedTuple

from fl.errors import RunDirError
from fl.run import files

_PIECE = 1 << 20


class Mark(NamedTuple):
    """The beginning of a file: how long it is, and the SHA-256 of it."""

    bytes: int
    sha256: str


NOTHING = Mark(0, hashlib.sha256().hexdigest())


class Growing:
    """The file `name` in the directory `root`."""

    def __init__(self, root: Path, name: str) -> None:
        self.root, self.name = root, name
        self._size, self._seen = 0, hashlib.sha256()

    @property
    def mark(self) -> Mark:
        """The mark of all that was written."""
        return Mark(self._size, self._seen.hexdigest())

    def append(self, data: bytes) -> None:
        """On disk when this returns."""
        handle = files.open_file(self.root, self.name, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        with os.fdopen(handle, "ab") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        self._size += len(data)
        self._seen.update(data)

    def cut(self, mark: Mark) -> None:
        """Forget what was written after `mark`; what came before must be what was written."""
        path = self.root / self.name
        handle = files.open_file(self.root, self.name, os.O_RDWR | os.O_CREAT)
        with os.fdopen(handle, "r+b") as file:
            size = os.fstat(file.fileno()).st_size
            if size < mark.bytes:
                raise RunDirError(
                    f"expected at least {mark.bytes} bytes in {path}, got {size}: it was cut or replaced"
                )
            seen, left = hashlib.sha256(), mark.bytes
            while left and (piece := file.read(min(left, _PIECE))):
                seen.update(piece)
                left -= len(piece)
            if seen.hexdigest() != mark.sha256:
                raise RunDirError(
                    f"expected the first {mark.bytes:,} bytes of {path} as the run wrote them, got others: "
                    "the record was changed or damaged; put back the file, or start again with --overwrite"
                )
            if size > mark.bytes:
                os.ftruncate(file.fileno(), mark.bytes)
                os.fsync(file.fileno())
        self._size, self._seen = mark.bytes, seen
