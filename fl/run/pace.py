"""How fast the clients of a round get done, for people who watch: at any size, and cheap per client.

clients/s     those that are done, over the seconds since the first wave of the round began
round left    those that are to come, at that rate. Who is to come: everybody who is there, or more where
              clients are asked twice (to train, to test); a server that samples is known to ask fewer
              only when the round is over
"""

from collections.abc import Callable
from threading import Lock
from time import perf_counter

from fl.run.meters.memory import rss
from fl.units import duration, size


class Pace:
    """The round that runs. Workers call `client_done`, several at a time."""

    def __init__(self, clock: Callable[[], float] = perf_counter, memory: Callable[[], int | None] = rss):
        self._clock, self._memory, self._lock = clock, memory, Lock()
        self.round_started(0)

    def round_started(self, clients: int) -> None:
        """So many clients are to come."""
        self.clients, self.asked, self.waves, self.width, self.done = clients, 0, 0, 0, 0
        self.began = self._told = self._clock()

    def wave_started(self, clients: int) -> None:
        if self.waves == 0:
            self.began = self._told = self._clock()
        self.waves, self.width, self.asked = self.waves + 1, clients, self.asked + clients

    def client_done(self, every: float) -> bool:
        """Count one; True once in `every` seconds: then it is time to say something."""
        with self._lock:
            self.done += 1
            now = self._clock()
            if now - self._told < every:
                return False
            self._told = now
            return True

    @property
    def total(self) -> int:
        """Clients of the round, as far as is known."""
        return max(self.clients, self.asked)

    @property
    def rate(self) -> float | None:
        """Clients per second; None before the first."""
        passed = self._clock() - self.began
        return self.done / passed if self.done and passed > 0 else None

    @property
    def left(self) -> float | None:
        """Seconds to the end of the round; None before the first client."""
        rate = self.rate
        return (self.total - self.done) / rate if rate else None

    def text(self) -> str:
        """All of it, in a line."""
        parts = [f"wave {self.waves}, {self.width:,} clients"]
        rate, left, memory = self.rate, self.left, self._memory()
        if rate is not None and left is not None:
            parts += [f"{rate:,.3g} clients/s" if rate < 1000 else f"{rate:,.0f} clients/s"]
            parts += [f"round left {duration(left)}"]
        if memory is not None:
            parts.append(f"memory {size(memory)}")
        return "  ".join(parts)
