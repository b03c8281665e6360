"""A counter of joules that is updated now and then: it is read where it moves.

Between two updates the counter says what it said before: over 250 ms at 300 W, two readings of one that is
updated every 100 ms are 60 to 90 J apart. From edge to edge they are 75 J.
"""

from collections.abc import Callable
from statistics import median
from typing import NamedTuple

from fl.run.meters.ticks import Time

_LOOK = 0.0005  # seconds between two looks at the counter, while an edge is waited for
_EDGES = 8  # whose distances make the period


class Edge(NamedTuple):
    at: float
    joules: float


class Counter:
    def __init__(self, read: Callable[[], float], time: Time) -> None:
        self.read, self._time = read, time

    def edge(self, limit_s: float) -> Edge | None:
        """The next moment at which the counter moves; None: it stood still for `limit_s`."""
        before, end = self.read(), self._time.now() + limit_s
        while self._time.now() < end:
            self._time.sleep(_LOOK)
            joules = self.read()
            if joules != before:
                return Edge(self._time.now(), joules)
        return None

    def period(self, limit_s: float) -> float | None:
        """Seconds between two updates; None: it stands still, or goes back."""
        edges = [self.edge(limit_s) for _ in range(_EDGES)] if self.edge(limit_s) else [None]
        there = [edge for edge in edges if edge is not None]
        pairs = list(zip(there, there[1:], strict=False))
        if len(there) < _EDGES or any(b.joules < a.joules for a, b in pairs):
            return None
        return median(b.at - a.at for a, b in pairs)
