"""Power, sampled: joules are the area below it."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple


class Sample(NamedTuple):
    at: float  # when the value was read from the sensor
    watts: float


def joules(samples: Sequence[Sample], begin: float, end: float) -> float | None:
    """By trapezoids; before the first sample and after the last one, their values hold. None: no sample.

    >>> joules([Sample(0, 100), Sample(2, 300)], 0, 2), joules([Sample(0, 100), Sample(2, 300)], 1, 3)
    (400.0, 550.0)
    """
    if not samples:
        return None
    times = [sample.at for sample in samples]
    inner = samples[bisect_right(times, begin) : bisect_left(times, end)]
    line = [Sample(begin, _at(samples, times, begin)), *inner, Sample(end, _at(samples, times, end))]
    return float(sum((b.at - a.at) * (a.watts + b.watts) / 2 for a, b in pairwise(line)))


def longest_gap(samples: Sequence[Sample], begin: float, end: float) -> float:
    """Seconds within the window for which there is no sample."""
    times = [begin, *(sample.at for sample in samples if begin < sample.at < end), end]
    return max(b - a for a, b in pairwise(times))


def _at(samples: Sequence[Sample], times: Sequence[float], when: float) -> float:
    """Watts at a moment, on the line between its neighbours."""
    i = bisect_left(times, when)
    if i == 0:
        return samples[0].watts
    if i == len(samples):
        return samples[-1].watts
    a, b = samples[i - 1], samples[i]
    return a.watts + (b.watts - a.watts) * (when - a.at) / (b.at - a.at)
