"""The figures of a comparison: one line per algorithm, the mean over seeds, with a band of one deviation."""

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from math import floor, log10
from statistics import fmean
from typing import NamedTuple

import plotly.graph_objects as go

from fl.compare.results import Comparison, figures, spread
from fl.report import figures as report_figures
from fl.report import page
from fl.report.page import Curve, Panel
from fl.run import keys
from fl.run.recorded import Record
from fl.units import quantity
from fl.world.clock import dollars

Totals = dict[str, tuple[float, float]]  # name: modelled time and energy
_NOTHING = "No data: no run is finished yet."
_ACCURACY = "test accuracy (%)"
_THETAS = [i / 50 for i in range(51)]
_WIDE_RANGE = 4  # of the ends of lines, above which an axis is logarithmic


class Line(NamedTuple):
    """One algorithm: runs of one length. One that stopped early keeps its last values, and pays no more."""

    name: str
    place: int  # in the plan: it looks the same in all figures
    runs: list[list[Record]]

    @property
    def x(self) -> list[int]:
        return [line["round"] for line in self.runs[0]]

    def per_round(self, value: Callable[[Record], float | None]) -> list[list[float | None]]:
        """[round][run]"""
        return [[value(line) for line in lines] for lines in zip(*self.runs, strict=True)]

    def knows(self, key: str) -> bool:
        """Whether every round of every run has it."""
        return all(line.get(key) is not None for rounds in self.runs for line in rounds)

    def paid(self, key: str) -> list[float]:
        """Until the end of every round, mean over seeds."""
        return [*accumulate(fmean(line[key] for line in lines) for lines in zip(*self.runs, strict=True))]


def panels(comparison: Comparison) -> list[Panel]:
    """All of them, in the order of the page."""
    lines = drawn(comparison)
    return [
        over_rounds(lines),
        *of_servers(lines),
        over_bytes(lines),
        over_flop(lines),
        over_energy(lines),
        *over_joules(lines),
        total_cost(comparison),
        target_cost(comparison),
        sparsity(lines),
        over_time(lines),
        partition(comparison),
    ]


def drawn(comparison: Comparison) -> list[Line]:
    """Return the lines of the finished runs; of an algorithm without any, of those that were begun.

    Beside lines with a band, one of a single seed says so.
    """
    lines = []
    for place, name in enumerate(comparison.plan.entries):
        done = comparison.finished(name)
        runs = [one.rounds for one in done or comparison.of(name) if one.rounds]
        if runs and done:
            longest = max(map(len, runs))
            lines.append(Line(name, place, [_held(rounds, longest) for rounds in runs]))
        elif runs:
            shortest = min(map(len, runs))
            lines.append(Line(f"{name} (not finished)", place, [rounds[:shortest] for rounds in runs]))
    bands = any(len(line.runs) > 1 for line in lines)
    return [_alone(line) if bands and len(line.runs) == 1 else line for line in lines]


def _held(rounds: list[Record], number: int) -> list[Record]:
    """Return `number` rounds: after the last one nothing is trained, and clients keep their models."""
    still = rounds[-1] | {key.of: 0 for key in keys.costs() if rounds[-1].get(key.of) is not None}
    return rounds + [still | {"round": t} for t in range(len(rounds), number)]


def _alone(line: Line) -> Line:
    return line._replace(name=f"{line.name} (1 seed)")


def over_rounds(lines: Sequence[Line]) -> Panel:
    figure = None
    if lines:
        figure = _share(_per_round(lines, accuracy, _ACCURACY))
    text = (
        "Test accuracy over all clients, each with the model that it would use: the one that it trained "
        "last, or its personal one. Bands: one standard deviation over seeds. A run that stopped early keeps "
        "its last accuracy in means over seeds, and pays nothing more."
    )
    return Panel("Accuracy", text, figure, _NOTHING)


def of_servers(lines: Sequence[Line]) -> list[Panel]:
    """None, or one: of the algorithms that have a server."""
    have = [line for line in lines if "accuracy_global" in line.runs[0][0]]
    if not have:
        return []
    figure = _share(_per_round(have, lambda record: record.get("accuracy_global"), _ACCURACY))
    text = "Test accuracy of the server's one model over all clients."
    return [Panel("Accuracy of servers' models", text, figure, _NOTHING)]


def over_bytes(lines: Sequence[Line]) -> Panel:
    text = "Sent by all clients (and a server) until then: messages as they were written, with masks."
    return Panel("Accuracy against bytes", text, _against(lines, "bytes_total", "bytes sent", "B"), _NOTHING)


def over_flop(lines: Sequence[Line]) -> Panel:
    text = "Training of all clients until then, counted exactly."
    return Panel("Accuracy against FLOP", text, _against(lines, "flop_round", "training FLOP"), _NOTHING)


def over_energy(lines: Sequence[Line]) -> Panel:
    text = "Of the clients' devices until then: modelled, not measured."
    figure = _against(lines, "sim_energy_j", "energy, modelled", "J")
    return Panel("Accuracy against joules (modelled)", text, figure, _NOTHING)


def over_joules(lines: Sequence[Line]) -> list[Panel]:
    """None, or one: of the algorithms whose joules are known in all rounds."""
    known = [line for line in lines if line.knows("energy_j")]
    if not known:
        return []
    missing = [line.name for line in lines if line not in known]
    text = "Read from meters of the machine of the comparison, until then; gross."
    if missing:
        text += f" Joules unknown: {', '.join(missing)}."
    figure = _against(known, "energy_j", "energy, measured", "J")
    return [Panel("Accuracy against joules (measured)", text, figure, _NOTHING)]


def over_time(lines: Sequence[Line]) -> Panel:
    text = "Wall time on the machine of the comparison until then."
    figure = _against(lines, "wall_s", "wall time, measured", " s")
    return Panel("Accuracy against seconds (measured)", text, figure, _NOTHING)


def sparsity(lines: Sequence[Line]) -> Panel:
    figure = None
    if lines:
        figure = _per_round(lines, lambda record: 1 - record["density_mean"], "sparsity")
        figure.update_yaxes(rangemode="tozero", hoverformat=".3f")
    text = "Share of the prunable weights that is neither stored nor sent."
    return Panel("Sparsity", text, figure, _NOTHING)


def total_cost(comparison: Comparison) -> Panel:
    """C(theta) of whole runs."""
    totals = _totals(comparison, figures)
    text = (
        "C(theta) = (1 - theta) time + theta energy of the whole run, both modelled, at 1 $/s and 1 $/J: on "
        "the left time alone counts, on the right energy alone."
    )
    return Panel("Total cost (modelled)", text, _theta(comparison, totals), _NOTHING)


def target_cost(comparison: Comparison) -> Panel:
    """C(theta) until the target accuracy."""
    totals = _totals(comparison, comparison.to_target)
    missing = [name for name in comparison.plan.entries if name not in totals]
    text = "C(theta) of the rounds until the target accuracy, mean over the seeds that reach it."
    if missing:
        text += f" Not reached: {', '.join(missing)}."
    figure = _theta(comparison, totals)
    return Panel(
        "Cost to the target accuracy (modelled)", text, figure, "No data: nobody reached the target."
    )


def partition(comparison: Comparison) -> Panel:
    """Return the figure of the partition that the report of a run has."""
    for result in comparison.results:
        if result.recorded is not None and result.recorded.partition is not None:
            panel = report_figures.partition(result.recorded)
            seeds = {one.run.seed for one in comparison.results}
            others = " Every seed draws its own." if len(seeds) > 1 else ""
            text = f"{panel.text} Seed {result.run.seed}, the same for all algorithms.{others}"
            return panel._replace(text=text)
    return Panel("Partition", "", None, "No data: no run has begun.", wide=True)


def _totals(comparison: Comparison, of: Callable[[Sequence[Record]], Record | None]) -> Totals:
    totals: Totals = {}
    for name in comparison.plan.entries:
        told = [of(one.rounds) for one in comparison.finished(name)]
        costs = [cost for cost in told if cost is not None]
        if costs:
            totals[name] = fmean(c["sim_time_s"] for c in costs), fmean(c["sim_energy_j"] for c in costs)
    return totals


def _theta(comparison: Comparison, totals: Totals) -> go.Figure | None:
    if not totals:
        return None
    places = {name: i for i, name in enumerate(comparison.plan.entries)}
    costs = {name: [dollars(theta, *both) for theta in _THETAS] for name, both in totals.items()}
    figure = page.curves([Curve(name, _THETAS, costs[name], *page.look(places[name])) for name in totals])
    figure.update_traces(mode="lines")
    _dressed(figure, "theta", "cost ($, log), modelled")
    ticks = _ticks(cost for line in costs.values() for cost in line)
    shown = [f"{tick:g}" if tick < 1000 else quantity(tick, "").rstrip() for tick in ticks]
    figure.update_yaxes(type="log", tickvals=ticks, ticktext=shown, hoverformat=".4~s")
    return figure


def _ticks(values: Iterable[float]) -> list[float]:
    """Return logarithmic ticks: 1, 2 and 5 times powers of ten; over a wide range, powers of ten alone."""
    there = [value for value in values if value > 0] or [1.0]
    low, high = floor(log10(min(there))), floor(log10(max(there)))
    digits = (1, 2, 5) if high - low < 3 else (1,)
    return [digit * 10.0**power for power in range(low, high + 2) for digit in digits]


def _against(lines: Sequence[Line], key: str, title: str, unit: str = "") -> go.Figure | None:
    """Accuracy against what was paid."""
    if not lines:
        return None
    figure = _dressed(_bands(lines, lambda line: line.paid(key), accuracy), title, _ACCURACY)
    figure.update_layout(hovermode="closest")
    figure.update_xaxes(tickformat="~s", hoverformat=".3~s", ticksuffix=unit)
    paid = [line.paid(key) for line in lines]
    ends = [costs[-1] for costs in paid]
    if max(ends) > _WIDE_RANGE * min(ends):
        ticks = _ticks(cost for costs in paid for cost in costs)
        shown = [quantity(tick, unit.strip()).rstrip() for tick in ticks]
        figure.update_xaxes(type="log", tickvals=ticks, ticktext=shown, title_text=f"{title} (log)")
    else:
        figure.update_xaxes(rangemode="tozero")
    return _share(figure)


def _per_round(lines: Sequence[Line], y: Callable[[Record], float | None], y_title: str) -> go.Figure:
    """`y` of every round."""
    figure = _dressed(_bands(lines, lambda line: line.x, y), "round", y_title)
    return page.whole_ticks(figure, max(len(line.x) for line in lines))


def accuracy(line: Record) -> float | None:
    return line["accuracy_mean"]


def _bands(
    lines: Sequence[Line], x: Callable[[Line], Sequence[float]], y: Callable[[Record], float | None]
) -> go.Figure:
    figure, drawn = go.Figure(), []
    for line in lines:
        spreads = [spread(values) for values in line.per_round(y)]
        colour, dash = page.look(line.place)
        drawn.append(Curve(line.name, x(line), [one and one.mean for one in spreads], colour, dash))
        if len(line.runs) > 1:
            low, high = ([one and one.mean + sign * (one.sd or 0) for one in spreads] for sign in (-1, 1))
            page.band(figure, x(line), low, high, line.name, colour, 0.12)
    figure.update_traces(showlegend=False)
    for curve in page.curves(drawn).data:  # above all bands
        figure.add_trace(curve.update(legendgroup=curve.name))
    return figure


def _share(figure: go.Figure) -> go.Figure:
    return figure.update_yaxes(tickformat=".0%", hoverformat=".2%")


def _dressed(figure: go.Figure, x_title: str, y_title: str) -> go.Figure:
    """With room for a legend of many names, also on a phone."""
    names = len({trace.name for trace in figure.data if trace.showlegend is not False})
    page.dressed(figure, x_title, y_title, 360 + 12 * names)
    return figure.update_layout(legend={"itemwidth": 30, "font": {"size": 11}})
