"""Time that goes on only where somebody waits: meters measure minutes in an instant."""

import mmap
import struct
from pathlib import Path


class VirtualTime:
    """A Time of fl/run/meters/ticks.py. What is done at intervals is done while somebody sleeps."""

    def __init__(self, file: Path | None = None) -> None:
        """`file`: others in this process read the time there, as a double."""
        self._t, self._due, self._map = 1.7e9, [], None
        if file is not None:
            file.write_bytes(bytes(8))
            with open(file, "r+b") as opened:
                self._map = mmap.mmap(opened.fileno(), 8)
        self._set(self._t)

    def now(self) -> float:
        return self._t

    epoch = now

    def sleep(self, seconds: float) -> None:
        end = self._t + seconds
        while self._due and min(one[0] for one in self._due) <= end:
            one = min(self._due, key=lambda one: one[0])
            self._set(max(one[0], self._t))
            one[0] += one[1]
            one[2]()
        self._set(end)

    def every(self, seconds, work):
        one = [self._t + seconds, seconds, work]
        self._due.append(one)
        return lambda: self._due.remove(one)

    def _set(self, t: float) -> None:
        self._t = t
        if self._map is not None:
            struct.pack_into("d", self._map, 0, t)
