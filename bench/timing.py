"""Timing on noisy machines: rivals take turns in one run, and the median counts.

A speed is only ever a ratio of two medians from the same `take_turns`, because the machine may be twice as
slow a minute later. In its turn a contestant runs once untimed and then `burst` times: what fits into a cache
is warm, as in a training loop. With burst 0 it runs once, timed, and finds the caches full of others' data.
"""

import gc
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True)
class Timing:
    """Seconds of one contestant."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return median(self.seconds)

    @property
    def best(self) -> float:
        return min(self.seconds)

    @property
    def spread(self) -> float:
        """Middle half of the measurements, relative to the median."""
        ordered = sorted(self.seconds)
        quarter = len(ordered) // 4
        return (ordered[-1 - quarter] - ordered[quarter]) / self.median


def take_turns(
    contestants: Mapping[str, Callable[[], object]],
    *,
    repeats: int,
    burst: int = 3,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Timing]:
    """Everyone in turn, `repeats` times, after one round that only warms up.

    `clock`: time.process_time for work of one thread, so that what others do on the machine counts less.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    collecting = gc.isenabled()
    gc.disable()
    try:
        for run in contestants.values():
            run()
        for _ in range(repeats):
            for name, run in contestants.items():
                if burst:
                    run()
                for _ in range(max(burst, 1)):
                    start = clock()
                    run()
                    seconds[name].append(clock() - start)
    finally:
        if collecting:
            gc.enable()
    return {name: Timing(tuple(values)) for name, values in seconds.items()}
