"""Measured joules as people read them, with the words where there are none.

Whether somebody asked for joules stands in the environment of a run: the facts of fl/run/meters/energy.py.
Nothing is said of a run that nobody asked. Modelled joules have rows and columns of their own.
"""

from collections.abc import Callable, Mapping
from itertools import groupby
from typing import Any

from fl.run.meters.energy import CPU, GPU, IDLE, NONE
from fl.units import quantity

Record = dict[str, Any]
Row = tuple[str, str, str, str]
UNKNOWN = "unknown"
TITLE = "energy, measured"
_SHARES = {
    "energy_per_round_j": "  per round",
    "energy_per_client_round_j": "  per client-round",
    "energy_per_step_j": "  per step",
    "energy_per_sample_j": "  per sample",
    "energy_per_point_j": "  per accuracy point gained",
}


def asked(environment: Mapping[str, str]) -> bool:
    """Whether somebody wanted joules."""
    return CPU in environment or GPU in environment


def absent(environment: Mapping[str, str]) -> str:
    """What stands in place of joules that are not there: no meter; or there was one, and it failed, or it
    was not asked for in all rounds."""
    facts = [environment[fact] for fact in (CPU, GPU) if fact in environment]
    return UNKNOWN if any(not fact.startswith(NONE) for fact in facts) else NONE


def joules(value: float) -> str:
    return quantity(value, "J")


def rows(summary: Record, compared: Callable[[str, Callable[[float], str], Any, Any], Row]) -> list[Row]:
    """Of a summary's table; empty: nobody asked. `compared` makes a row of ours and the dense one's."""
    environment, dense = summary["environment"], summary.get("baseline") or {}
    if not asked(environment) and summary["energy_j"] is None:
        return []
    if summary["energy_j"] is None:
        return [(TITLE, absent(environment), "", ""), *_flagged(summary)]
    net = summary["energy_net_j"]
    return [
        compared(TITLE, joules, summary["energy_j"], dense.get("energy_j")),
        compared("  net of idle power", joules, net, dense.get("energy_net_j"))
        if net is not None
        else ("  net of idle power", UNKNOWN, "", ""),
        *((name, joules(summary[key]), "", "") for key, name in _SHARES.items() if summary[key] is not None),
        *_flagged(summary),
    ]


def _flagged(summary: Record) -> list[Row]:
    flagged = summary["energy_flagged"]
    return [("  unknown or uncertain in", f"rounds {spans(flagged)}", "", "")] if flagged else []


def tile(summary: Record) -> list[tuple[str, str, str]]:
    """Of the head of a report; empty: nobody asked."""
    environment, gross, net = summary["environment"], summary["energy_j"], summary["energy_net_j"]
    if gross is None:
        return [("Energy, measured", absent(environment), "")] if asked(environment) else []
    shown = UNKNOWN if net is None else joules(net)
    return [("Energy, measured", joules(gross), f"net of idle power {shown}")]


def notes(rounds: list[Record], environment: Mapping[str, str]) -> list[str]:
    """Where joules come from, or why there are none; where they are unknown or uncertain."""
    found: dict[str, list[int]] = {}
    for line in rounds:
        if line.get("energy_note"):
            found.setdefault(line["energy_note"], []).append(line["round"])
    sources = [f"{fact}: {environment[fact]}" for fact in (CPU, GPU, IDLE) if fact in environment]
    return [*sources, *(f"{note} (rounds {spans(those)})" for note, those in found.items())]


def spans(numbers: list[int]) -> str:
    """
    >>> spans([0, 1, 2, 5, 7, 8])
    '0-2, 5, 7-8'
    """
    runs = [[n for _, n in group] for _, group in groupby(enumerate(numbers), lambda one: one[1] - one[0])]
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)
