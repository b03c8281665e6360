"""The copies of other machines' models, as messages: what is left of a machine that dies.

A keeper is a process beside the workers. A worker's new models are at the keeper of the next machine before
anybody hears of them, and whoever needs another machine's model takes it from there: it is encoded once.

Nothing of ours is imported here, and names are plain tuples (maker, serial): a keeper has no torch, so it
takes little memory beside what it keeps, and is there at once.
"""

import os
import threading
from collections.abc import Iterable, Mapping

_Name = tuple[int, int]
_Blob = tuple[str, bytes]


class Keeper:
    """An actor with blobs by name; several calls at a time."""

    def __init__(self) -> None:
        self._blobs: dict[_Name, _Blob] = {}
        self._given, self._lock = 0, threading.Lock()

    def keep(self, blobs: Mapping[_Name, _Blob]) -> None:
        """Nothing is lost from here on, as long as this process or the worker lives."""
        with self._lock:
            self._blobs.update(blobs)

    def give(self, names: Iterable[_Name]) -> list[_Blob | None]:
        """What was kept under these names; None: nothing."""
        with self._lock:
            found = [self._blobs.get(name) for name in names]
            self._given += len(found)
        return found

    def sizes(self, names: Iterable[_Name]) -> list[int]:
        """Their bytes; 0: nothing is kept."""
        with self._lock:
            return [len(self._blobs.get(name, ("", b""))[1]) for name in names]

    def names(self, makers: Iterable[int]) -> list[_Name]:
        """What these workers have made, and is kept."""
        wanted = set(makers)
        with self._lock:
            return [name for name in self._blobs if name[0] in wanted]

    def forget(self, names: Iterable[_Name]) -> None:
        with self._lock:
            for name in names:
                self._blobs.pop(name, None)

    def facts(self) -> dict[str, int]:
        """How many blobs there are, their bytes, and how many were given away so far."""
        with self._lock:
            return {
                "pid": os.getpid(),
                "blobs": len(self._blobs),
                "bytes": sum(len(data) for _, data in self._blobs.values()),
                "given": self._given,
            }

    def ping(self) -> None:
        """It lives."""
