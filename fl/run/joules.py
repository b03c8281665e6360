"""Measured joules of a run over what they were spent on: rounds, trainings, batches, samples, accuracy."""

from collections.abc import Sequence
from typing import Any

from fl.keys import summed

Record = dict[str, Any]


def shares(rounds: Sequence[Record]) -> Record:
    """The keys of a summary; None where joules, or what they are divided by, are unknown.

    >>> lines = [{"energy_j": 30, "trained": 4, "steps": 20, "accuracy_mean": 0.5, "accuracy_before": 0.1}]
    >>> found = shares(lines)
    >>> [found[f"energy_per_{what}_j"] for what in ("client_round", "step", "sample", "point")]
    [7.5, 1.5, None, 0.75]
    """
    spent = _sum(rounds, "energy_j")
    return {
        "energy_per_round_j": _over(spent, len(rounds)),
        "energy_per_client_round_j": _over(spent, _sum(rounds, "trained")),
        "energy_per_step_j": _over(spent, _sum(rounds, "steps")),
        "energy_per_sample_j": _over(spent, _sum(rounds, "samples")),
        "energy_per_point_j": _per_point(rounds),
    }


def _per_point(rounds: Sequence[Record]) -> float | None:
    tested = [line for line in rounds if line["accuracy_mean"] is not None]
    first = rounds[0].get("accuracy_before")
    if not tested or first is None:
        return None
    best = max(tested, key=lambda line: line["accuracy_mean"])
    gained = 100 * (best["accuracy_mean"] - first)
    return _over(_sum(rounds[: best["round"] + 1], "energy_j"), gained)


def _sum(rounds: Sequence[Record], key: str) -> Any:
    return summed("sum", [line.get(key) for line in rounds])


def _over(spent: float | None, number: float | None) -> float | None:
    return spent / number if spent is not None and number is not None and number > 0 else None
