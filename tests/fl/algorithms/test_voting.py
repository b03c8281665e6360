"""Votes, the first pruning time and the pruning rounds, worked by hand."""

from decimal import Decimal
from math import ceil, inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fl.algorithms.voting import first_prune_round, prune_rounds, vote


@pytest.mark.parametrize(
    ("drift", "previous", "first", "expected"),
    [
        (12.0, 11.5, 10.0, False),  # 0.05 is not below 0.05
        (12.0, 11.75, 10.0, True),
        (11.5, 12.25, 10.0, False),
        (11.75, 12.0, 10.0, True),  # shrinking counts like growing
        (10.0, None, None, None),
        (10.0, None, 10.0, None),
        (0.0, 0.0, 0.0, False),
        (nan, 1.0, 1.0, False),
        (1.0, inf, 1.0, False),
    ],
)
def test_vote(drift, previous, first, expected):
    assert vote(drift, previous, first, 0.05) is expected


@pytest.mark.parametrize(
    ("t_star", "t", "votes", "expected"),
    [
        (None, 0, [None, None, None], None),
        (None, 3, [True, False, False], None),
        (None, 3, [True, False], 3),  # half suffices
        (None, 3, [True, True, False], 3),
        (None, 3, [], None),
        (None, 3, [None, True, False], 3),  # who has no vote is not counted
        (2, 3, [False, False], 2),  # it stays
        (2, 3, [True, True], 2),
    ],
)
def test_first_prune_round(t_star, t, votes, expected):
    assert first_prune_round(t_star, t, votes) == expected


def test_other_majorities():
    assert first_prune_round(None, 4, [True] * 7 + [False] * 3, delta_v=0.7) == 4
    assert first_prune_round(None, 4, [True] * 6 + [False] * 4, delta_v=0.7) is None
    assert first_prune_round(None, 4, [True] * 10, delta_v=1.0) == 4


def test_min_first_prune_holds_back():
    """Votes suffice in rounds 2, 3 and 6; not before round 5 means 6, and not 5."""
    t_star = None
    for t, share in enumerate([0, 0, 1, 1, 0, 0, 1]):
        t_star = first_prune_round(t_star, t, [share == 1] * 4, min_first_prune=5)
        assert t_star == (6 if t == 6 else None)
    assert first_prune_round(None, 5, [True], min_first_prune=5) == 5


@pytest.mark.parametrize(
    ("t_star", "num_rounds", "options", "expected"),
    [
        # 10, ceil(10/1.3) = 8, ceil(5.92) = 6, ceil(4.55) = 5, ceil(3.50) = 4: t_p = 10, 18, 24, 29, 33
        (10, 35, {}, {11, 19, 25, 30, 34}),
        (10, 34, {}, {11, 19, 25, 30}),
        (10, 11, {}, set()),
        (10, 12, {}, {11}),
        # 7, ceil(7/2) = 4, ceil(7/4) = 2, 1, 1, ...: t_p = 7, 11, 13, 14, 15, 16
        (7, 18, {"c": 2}, {8, 12, 14, 15, 16, 17}),
        # (4 + 3)/2^i as above
        (4, 18, {"b": 3, "c": 2}, {8, 12, 14, 15, 16, 17}),
        (4, 18, {"b": 2.5, "c": 2}, {8, 12, 14, 15, 16, 17}),  # 6.5, 3.25, 1.63, ...: rounded up the same
        # 13/1.3 is exactly 10, 13/1.69 = 7.69
        (13, 40, {}, {14, 24, 32, 38}),
        (1, 6, {}, {2, 3, 4, 5}),
        (None, 100, {}, set()),
    ],
)
def test_prune_rounds(t_star, num_rounds, options, expected):
    assert prune_rounds(t_star, num_rounds, **options) == expected


@given(t_star=st.integers(1, 400), cents=st.integers(101, 400), b=st.integers(0, 20))
def test_prune_rounds_by_the_formula(t_star, cents, b):
    c, expected, t_p = Decimal(cents) / 100, set(), 0
    for tau in range(1, 600):
        t_p += max(1, ceil((t_star + b) / c ** (tau - 1)))
        if t_p + 1 < 500:
            expected.add(t_p + 1)
    assert prune_rounds(t_star, 500, b=b, c=cents / 100) == expected


def authors_pruning_epochs(a, b, c, step=20):
    """What the authors' code does, line by line."""
    frequencies = [a]
    for _ in range(step):
        frequencies.append(round((frequencies[-1] + b) / c))
    return [sum(frequencies[: i + 1]) for i in range(len(frequencies))]


@pytest.mark.parametrize(
    ("t_star", "c", "expected"),
    [
        (3, 1.3, {4, 6, 8, 10, 12, 14}),  # 3, 2 (2.3), 2 (1.5), 2 for ever; "ceil": 3, 3, 2, 2, 2, 1
        (7, 2.0, {8, 12, 14, 15}),  # 7, 4 (3.5, to the even one), 2, 1, 0 (0.5), 0: it ends
        (1, 1.3, set(range(2, 23))),  # 21 gaps of 1
    ],
)
def test_gaps_as_in_the_authors_code_by_hand(t_star, c, expected):
    num_rounds = 15 if t_star == 3 else 100
    assert prune_rounds(t_star, num_rounds, c=c, gaps="round") == expected


@given(t_star=st.integers(1, 400), cents=st.integers(101, 400), b=st.integers(0, 20))
def test_gaps_as_in_the_authors_code(t_star, cents, b):
    wanted = {t + 1 for t in authors_pruning_epochs(t_star, b, Decimal(cents) / 100) if t + 1 < 500}
    assert prune_rounds(t_star, 500, b=b, c=cents / 100, gaps="round") == wanted


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: vote(1.0, 1.0, 1.0, 0.0), "expected delta_pr > 0, got 0.0"),
        (
            lambda: first_prune_round(None, 1, [True], delta_v=0.0),
            "expected delta_v above 0 and up to 1, got 0.0",
        ),
        (lambda: first_prune_round(None, 1, [True], delta_v=1.1), "got 1.1"),
        (
            lambda: first_prune_round(None, 1, [True], min_first_prune=-1),
            "expected min_first_prune >= 0, got -1",
        ),
        (lambda: prune_rounds(5, 10, b=-1), "expected b >= 0, got -1"),
        (lambda: prune_rounds(5, 10, c=1.0), "expected c > 1, .* got 1.0"),
        (lambda: prune_rounds(None, 10, c=0.5), "got 0.5"),
        (lambda: prune_rounds(5, 10, c=nan), "got nan"),
        (lambda: prune_rounds(0, 10), r"expected t_star from 1 on \(round 0 has no votes\), got 0"),
    ],
)
def test_refusals(call, message):
    with pytest.raises(ValueError, match=message):
        call()
