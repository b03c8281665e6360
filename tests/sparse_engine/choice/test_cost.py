"""What kernels cost: constants are found again, counts follow the layer."""

import numpy as np
import pytest

from sparse_engine.choice import cost
from sparse_engine.choice.cost import Case
from sparsefl.kernels import sparse_conv as sc
from sparsefl.kernels.sparse_conv import Geometry

CASES = [
    Case(
        Geometry(out, into, (k, k), stride, (k // 2, k // 2), density=density), direction, (size, size, batch)
    )
    for direction in sc.DIRECTIONS
    for out, into, k, stride, size in (
        (16, 3, 3, 1, 8),
        (8, 24, 3, 2, 9),
        (32, 7, 1, 1, 5),
        (64, 100, 1, 1, 1),
    )
    for density in (0.1, 0.5, 1.0)
    for batch in (1, 10, 32, 100)
]


@pytest.mark.parametrize("case", CASES[::7], ids=str)
def test_every_candidate_has_as_many_counts_as_constants(case):
    for kernel in sc.candidates(case.conv):
        counts = cost.counts(case, kernel)
        assert len(counts) == cost.NUMBER[sc.split(kernel)[0]]
        assert counts[0] == 1 and np.isfinite(counts).all() and min(counts) >= 0


def test_what_was_seen_is_expected():
    """Times made of constants are expected again, though not every constant can be told apart."""
    draw = np.random.default_rng(0)
    made = {}
    seen = []
    for case in CASES:
        times = {}
        for kernel in sc.candidates(case.conv):
            counts = cost.counts(case, kernel)
            constants = made.setdefault(cost.name(case, kernel), 1e-10 * draw.random(len(counts)) + 1e-12)
            times[kernel] = float(constants @ counts)
        seen.append((case, times))
    found = cost.fit(seen)
    for case, times in seen:
        for kernel, time in times.items():
            assert cost.seconds(found, case, kernel) == pytest.approx(time, rel=0.1)


def test_names_hold_the_instruction_set_that_runs():
    conv = Case(Geometry(4, 3, (3, 3)), "forward", (5, 5, 2))
    linear = Case(Geometry(4, 3), "weight_gradient", (1, 1, 2))
    assert cost.name(conv, "sparse:avx2") == "sparse avx2 forward conv"
    assert cost.name(linear, "torch") == "torch weight_gradient linear"
    assert cost.seconds({}, conv, "torch") is None
