"""Contestants take turns."""

import pytest

from sparsefl.bench.timing import Timing, take_turns


@pytest.mark.parametrize(("burst", "expected"), [(0, "abab"), (2, "aaabbb" * 2)])
def test_turns(burst, expected):
    order = []
    contestants = {"a": lambda: order.append("a"), "b": lambda: order.append("b")}
    timings = take_turns(contestants, repeats=2, burst=burst)
    assert "".join(order) == "ab" + expected  # one round to warm up
    assert all(len(timing.seconds) == 2 * max(burst, 1) for timing in timings.values())


def test_the_median_counts():
    timing = Timing((3.0, 1.0, 2.0, 100.0, 2.5))
    assert timing.median == 2.5 and timing.best == 1.0 and timing.spread == pytest.approx((3.0 - 2.0) / 2.5)
