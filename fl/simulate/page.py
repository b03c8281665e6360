"""Curves of `sparsefl simulate` against M and N as in the paper, on one self-contained page."""

from collections.abc import Callable
from html import escape
from math import isnan

import plotly.graph_objects as go

from fl.report.page import COLOURS, Panel, document, dressed, grid, table
from fl.simulate.simulate import MODELLED, Mean, Row, Settings, describe, with_error
from fl.units import quantity

_HEAD = (
    "neighbours (M)", "waits for (N)", "rounds", "start at once", "depth", "mean waiting*", "time per round*",
    "energy per round*",
)  # fmt: skip


def page(settings: Settings, rows: list[Row]) -> str:
    """The whole HTML document, plotly inside."""
    body = f"""<h1>Who waits for whom: the schedule of {settings.clients:,} clients</h1>
<p>{escape(describe(settings))}.</p>
<p class="note">{escape(MODELLED.capitalize())}. Bars are standard errors.</p>
{grid(Panel(*figure) for figure in _figures(rows))}
<h2>All settings</h2>{table(map(_cells, rows), _HEAD)}<p class="note">* modelled</p>"""
    return document(f"Schedule of {settings.clients:,} clients", body)


def _figures(rows: list[Row]) -> list[tuple[str, str, go.Figure]]:
    degrees = sorted({row.degree for row in rows})
    waits = sorted({row.max_wait for row in rows}, key=_wait_order)
    figures = []
    if len(degrees) > 1:
        by_degree = [(_wait_name(n), [row for row in rows if row.max_wait == n], n is None) for n in waits]
        figures += [
            (
                "Clients that start at once, against M",
                "Parallelism: the share of clients that wait for nobody, 1/(M + 1) for every N from 1 on.",
                _lines(by_degree, lambda row: row.degree, lambda row: row.parallelism, "M", "share"),
            ),
            (
                "Delay by waiting, against M",
                "Depth: the longest chain of clients that wait in turn; a round lasts depth + 1 trainings.",
                _lines(by_degree, lambda row: row.degree, lambda row: row.depth, "M", "depth"),
            ),
            (
                "Time of a round, against M (modelled)",
                "Training and messages.",
                _lines(by_degree, lambda row: row.degree, lambda row: row.time_s, "M", "seconds, modelled"),
            ),
            (
                "Energy of a round, against M (modelled)",
                "All clients together. Waiting itself costs energy only where idle watts are given.",
                _lines(by_degree, lambda row: row.degree, lambda row: row.energy_j, "M", "joules, modelled"),
            ),
        ]
    if len(waits) > 1:
        by_wait = [(f"M = {m:g}", [row for row in rows if row.degree == m], False) for m in degrees]
        figures += [
            (
                "Delay by waiting, against N",
                "The last point of a line is N = all.",
                _lines(by_wait, _wait_place, lambda row: row.depth, "N", "depth"),
            ),
            (
                "Time of a round, against N (modelled)",
                "Training and messages.",
                _lines(by_wait, _wait_place, lambda row: row.time_s, "N", "seconds, modelled"),
            ),
        ]
    middle = degrees[len(degrees) // 2]
    figures.append(
        (
            f"How a round unfolds, M = {middle:g}",
            "The share of clients in every wave; a wave needs models of the waves before.",
            _unfolding([row for row in rows if row.degree == middle]),
        )
    )
    return figures


def _lines(
    groups: list[tuple[str, list[Row], bool]],
    x: Callable[[Row], float],
    y: Callable[[Row], Mean],
    x_title: str,
    y_title: str,
) -> go.Figure:
    figure = go.Figure()
    for i, (name, rows, black) in enumerate(groups):
        rows = sorted(rows, key=x)
        values = [y(row) for row in rows]
        errors = [0.0 if isnan(value.error) else value.error for value in values]
        figure.add_scatter(
            x=[x(row) for row in rows],
            y=[value.mean for value in values],
            error_y={"type": "data", "array": errors, "thickness": 1},
            name=name,
            mode="lines+markers",
            line={"color": "black" if black else COLOURS[i % len(COLOURS)]},
        )
    return _dressed(figure, x_title, y_title)


def _unfolding(rows: list[Row]) -> go.Figure:
    figure = go.Figure()
    for i, row in enumerate(sorted(rows, key=lambda row: _wait_order(row.max_wait))):
        colour = "black" if row.max_wait is None else COLOURS[i % len(COLOURS)]
        figure.add_scatter(
            x=list(range(len(row.wave_shares))),
            y=row.wave_shares,
            name=_wait_name(row.max_wait),
            mode="lines+markers",
            line={"color": colour},
        )
    return _dressed(figure, "wave", "share of clients")


def _dressed(figure: go.Figure, x_title: str, y_title: str) -> go.Figure:
    dressed(figure, x_title, y_title)
    return figure.update_xaxes(rangemode="tozero").update_yaxes(rangemode="tozero")


def _cells(row: Row) -> tuple[str, ...]:
    return (
        f"{row.degree:g}",
        "all" if row.max_wait is None else str(row.max_wait),
        str(row.rounds),
        with_error(row.parallelism, 4),
        with_error(row.depth, 2),
        quantity(row.waiting_s.mean, "s"),
        quantity(row.time_s.mean, "s"),
        quantity(row.energy_j.mean, "J"),
    )


def _wait_name(max_wait: int | None) -> str:
    return "N = M" if max_wait is None else f"N = {max_wait}"


def _wait_order(max_wait: int | None) -> float:
    return float("inf") if max_wait is None else max_wait


def _wait_place(row: Row) -> float:
    return row.degree if row.max_wait is None else row.max_wait
