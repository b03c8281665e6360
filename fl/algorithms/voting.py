"""When pruning starts, and the rounds in which it is done (algorithms.md 2.5 to 2.7).

    vote    |Delta_t - Delta_{t-1}| / Delta_first < delta_pr;  the first round has no votes
    t*      the first round t whose mean vote >= delta_v
    t_p     sum_{tau=1..p} I_tau,  with the gaps
            I_tau = ceil((t* + b) / c^{tau-1})                     "ceil": the paper; they shrink to 1
            I_1 = t*,  I_{tau+1} = round((I_tau + b) / c)          "round": the authors' code, 21 of them

Votes are known only after a round, so pruning is done in the rounds t_p + 1 < T.
"""

from collections.abc import Iterable, Iterator
from fractions import Fraction
from itertools import islice
from math import ceil, inf
from typing import Literal

Gaps = Literal["ceil", "round"]
_ROUNDED = 21  # gaps in the authors' code: the first and 20 more


def vote(drift: float, previous: float | None, first: float | None, delta_pr: float) -> bool | None:
    """A client's vote for pruning; None in the first round, when there is no previous drift.

    A client that never moved (first drift 0) or whose drift is not a number votes against.
    """
    if delta_pr <= 0:
        raise ValueError(f"expected delta_pr > 0, got {delta_pr}")
    if previous is None or first is None:
        return None
    return first > 0 and abs(drift - previous) / first < delta_pr


def first_prune_round(
    t_star: int | None,
    t: int,
    votes: Iterable[bool | None],
    *,
    delta_v: float = 0.5,
    min_first_prune: int = 0,
) -> int | None:
    """t* after round t: the one there was; else t, if its votes suffice and it is late enough."""
    if not 0 < delta_v <= 1:
        raise ValueError(f"expected delta_v above 0 and up to 1, got {delta_v}")
    if min_first_prune < 0:
        raise ValueError(f"expected min_first_prune >= 0, got {min_first_prune}")
    if t_star is not None:
        return t_star
    cast = [given for given in votes if given is not None]
    return t if cast and t >= min_first_prune and sum(cast) / len(cast) >= delta_v else None


def prune_rounds(
    t_star: int | None, num_rounds: int, *, b: float = 0, c: float = 1.3, gaps: Gaps = "ceil"
) -> set[int]:
    """The rounds t_p + 1 < num_rounds; none before t* is known."""
    if not 0 <= b < inf:
        raise ValueError(f"expected b >= 0, got {b}")
    if not 1 < c < inf:
        raise ValueError(f"expected c > 1, or the gaps between prunings would not shrink, got {c}")
    if t_star is None:
        return set()
    if t_star < 1:
        raise ValueError(f"expected t_star from 1 on (round 0 has no votes), got {t_star}")
    rounds, t_p = set(), 0
    for gap in _GAPS[gaps](t_star, _exact(b), _exact(c)):
        t_p += gap
        if t_p + 1 >= num_rounds:
            break
        rounds.add(t_p + 1)
    return rounds


def _rounded_up(t_star: int, b: Fraction, c: Fraction) -> Iterator[int]:
    gap = t_star + b
    while True:
        yield ceil(gap)
        gap = gap / c if gap > 1 else Fraction(1)  # below 1 it is rounded up to 1 for ever


def _rounded(t_star: int, b: Fraction, c: Fraction) -> Iterator[int]:
    """Each from the rounded one before it. A gap of 0 is a round that was named before."""

    def each() -> Iterator[int]:
        gap = t_star
        while True:
            yield gap
            gap = round((gap + b) / c)

    return islice(each(), _ROUNDED)


_GAPS = {"ceil": _rounded_up, "round": _rounded}


def _exact(x: float) -> Fraction:
    """The decimal that was written: 13 / 1.3 is 10 and not a little more."""
    return Fraction(str(x))
