"""Time as meters need it: now, waiting, and something done at regular intervals. Tests bring their own."""

import threading
import time
from collections.abc import Callable
from typing import Protocol


class Time(Protocol):
    def now(self) -> float:
        """Seconds that only go forward."""

    def epoch(self) -> float:
        """Seconds since 1970, as drivers stamp what they read."""

    def sleep(self, seconds: float) -> None: ...

    def every(self, seconds: float, work: Callable[[], None]) -> Callable[[], None]:
        """Do `work` at that interval, beside everything else, until what is returned is called."""


class System:
    """The machine's time; `every` is a thread."""

    def now(self) -> float:
        return time.perf_counter()

    def epoch(self) -> float:
        return time.time()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def every(self, seconds: float, work: Callable[[], None]) -> Callable[[], None]:
        ended = threading.Event()

        def run() -> None:
            due = time.perf_counter() + seconds
            while not ended.wait(max(0.0, due - time.perf_counter())):
                work()
                due = max(due + seconds, time.perf_counter())  # what is late is not made up for

        thread = threading.Thread(target=run, name="meter", daemon=True)
        thread.start()

        def stop() -> None:
            ended.set()
            thread.join()

        return stop


SYSTEM = System()
