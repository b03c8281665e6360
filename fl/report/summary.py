"""What a run gave and what it cost, as rows of text: for the terminal and for its report."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from fl.config import Config
from fl.report import energy
from fl.run import keys
from fl.run.events import Record
from fl.units import counted, duration, percent, size

Row = tuple[str, str, str, str]
SUMMARY_COLUMNS = ("", "this run", "dense", "dense / this")


def summary_rows(summary: Record) -> list[Row]:
    """Return rows of what a run gave and what it cost. Measured and modelled figures have their own rows."""
    ours, dense = summary, summary.get("baseline") or {}
    return [
        *_accuracies(ours, dense),
        *_accuracy_cost(ours),
        ("density, last round", f"{ours['density_last']:.3f}", "1", ""),
        *_declared(ours),
        _compared("bytes sent", size, ours["bytes_total"], ours["bytes_total_dense"]),
        _compared("  as the paper counts", size, ours["bytes_total_paper"], ours["bytes_total_dense"]),
        _compared("training FLOP", _flop, ours["flop_total"], ours["flop_total_dense"]),
        _compared("local training, measured, all clients", duration, ours["train_s"], dense.get("train_s")),
        _compared("wall time, measured", duration, ours["wall_s"], dense.get("wall_s")),
        *energy.rows(ours, _compared),
        ("time, modelled", duration(ours["sim_time_s"]), "", ""),
        ("energy, modelled", f"{ours['sim_energy_j']:,.4g} J", "", ""),
        *(("MIXED", line, "", "") for line in mixed_lines(ours)),
    ]


def _declared(ours: Record) -> list[Row]:
    """What the algorithm of the run wants to be there."""
    shown = [key for key in keys.own("run", ours["algorithm"]) if key.shown]
    return [(key.shown, _text(ours[key.name]), "", "") for key in shown]


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def how_long(summary: Record) -> str:
    """Return how many rounds ran, such as "50 rounds" or "12 of 50 rounds, stopped early: why"."""
    planned, stop = summary["num_rounds"], summary["stopped_early"]
    if stop is None:
        return counted(planned, "round")
    return f"{stop['round'] + 1} of {counted(planned, 'round')}, stopped early: {stop['why']}"


def mixed_lines(summary: Record) -> list[str]:
    """Return from which round on numbers were computed differently, and how; empty if all are alike."""
    parts = summary.get("mixed") or []
    return [
        f"from round {new['from_round']}: " + ", ".join(f"{key} {new['numerics'][key]}" for key in changed)
        for old, new in pairwise(parts)
        if (changed := [key for key in new["numerics"] if new["numerics"][key] != old["numerics"].get(key)])
    ]


def _accuracies(ours: Record, dense: Record) -> list[Row]:
    """Return accuracy rows over all clients, each with the model it would use, and of the server's model."""
    best = f"{percent(ours['accuracy_best'])} (round {ours['round_best']})"
    last, mean = percent(ours["accuracy_last"]), percent(ours["accuracy_last5"])
    rows = [
        ("test accuracy, best round", best, _accuracy(dense, "accuracy_best"), ""),
        ("test accuracy, mean of last 5", mean, _accuracy(dense, "accuracy_last5"), ""),
        ("test accuracy, last round", last, _accuracy(dense, "accuracy_last"), ""),
    ]
    if ours["accuracy_global_best"] is not None:
        shared = [percent(ours[f"accuracy_global_{when}"]) for when in ("best", "last5")]
        rows += [
            ("  server's model, best round", shared[0], "", ""),
            ("  server's model, mean of last 5", shared[1], "", ""),
        ]
    return rows


def _accuracy(dense: Record, key: str) -> str:
    """Return the accuracy of the same run on dense kernels; empty if there is none."""
    return percent(dense[key]) if key in dense else ""


def _accuracy_cost(ours: Record) -> list[Row]:
    """Return what inexact messages cost: the best round of the run with exact ones, less that of this run."""
    values = ours.get("values", "fp32")
    if values == "fp32":
        return []
    name, exact = f"  what {values} messages cost", ours.get("exact")
    if exact is None:
        return [(name, "not measured (--baseline fp32)", "", "")]
    points = 100 * (exact["accuracy_best"] - ours["accuracy_best"])
    return [
        (name, f"{points:+.2f} points", "", ""),
        ("  accuracy with fp32", percent(exact["accuracy_best"]), "", ""),
    ]


def times(ours: float, dense: float) -> str:
    """Return how many times less, such as 1.95x; empty if there was none."""
    return f"{dense / ours:.2f}x" if ours else ""


def _compared(name: str, shown: Callable[[float], str], ours: float, dense: float | None) -> Row:
    if dense is None:
        return name, shown(ours), "not measured", ""
    return name, shown(ours), shown(dense), times(ours, dense)


def describe(config: Config) -> str:
    """Return one line that says what runs."""
    what = f"{config.algorithm} on {config.data.name}, {config.model.name}"
    kernels = f"{config.training.kernels} kernels"
    clients, rounds = counted(config.num_clients, "client"), counted(config.num_rounds, "round")
    return f"{what} ({kernels}), {clients}, {rounds}"


def _flop(count: float) -> str:
    return f"{count:.3g}"
