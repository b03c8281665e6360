"""What a figure of a run is called, what it means, and how it is shown: as data.

Figures that every run has are in fl/run/keys.py. An algorithm that adds some declares them in its module,
beside `Config`, `init` and `run_round`; tables, reports and reference are made from what it declares:

    KEYS = (
        Key("norm", "of the client's update", where="client"),
        Key("norm_mean", "of updates, mean over clients", of="norm", sums="mean", null=True),
    )
    FIGURES = (Figure(key="norm_mean", title="Updates", text="How far a round moves.", y="norm"),)
"""

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from statistics import fmean
from typing import Any, Literal

Where = Literal["round", "client", "run"]  # a line of metrics.jsonl, of clients.jsonl; summary.json
Kind = Literal["exact", "measured", "modelled"]
Sums = Literal["sum", "max", "mean", "last", "rounds", "none"]


@dataclass(frozen=True)
class Key:
    """One figure of a round, of a client in a round, or of a whole run.

    A key with `of` is made from another: one of a round from the clients' column of that name, one of a run
    from the rounds' lines. `sums` says how: "rounds" are the numbers of the rounds in which it is not 0.
    A key of a round that is made from a column, and that an algorithm of this package declares, is in the
    lines of all algorithms: those of one that has no such column get what nothing sums to.
    """

    name: str
    text: str
    _: KW_ONLY
    where: Where = "round"
    unit: str = ""
    kind: Kind = "exact"
    of: str = ""
    sums: Sums = "none"
    null: bool = False  # it may be null: there was none
    reference: bool = False  # of dense models instead: no cost of this run
    shown: str = ""  # of a round: how a line of progress has it; of a run: its name in the table of a summary
    mark: str = ""  # of a run: what figures call the round, or the rounds, that it names


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A figure of a report: one key of a round as a curve over rounds."""

    key: str
    title: str
    text: str
    y: str  # title of the axis
    curve: str = "mean over clients"
    scale: Literal["zero", "share", "log"] = "zero"  # from 0 on; in percent, from 0 to 100; logarithmic
    missing: str = "it was not recorded."  # why there is no data


@dataclass(frozen=True, kw_only=True)
class Level:
    """A line across the figure of a key: a value that a setting of the algorithm gives."""

    key: str
    value: Callable[[Any], float]  # of the algorithm's `Config`
    text: str  # "target {:g}"


def summed(sums: Sums, values: Sequence[Any]) -> Any:
    """`values` as one. A mean is over those that are there, None if none is; a sum or largest one with a
    value that nobody knows is unknown itself.

    >>> summed("mean", [1, None, 2]), summed("sum", [1, None]), summed("sum", []), summed("last", [3, 4])
    (1.5, None, 0, 4)
    """
    if sums == "last":
        return values[-1]
    known = [value for value in values if value is not None]
    if sums == "mean":
        return fmean(known) if known else None
    if len(known) < len(values):
        return None
    return max(known) if sums == "max" else sum(known)
