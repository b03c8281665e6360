"""Curves of `sparsefl simulate` against M and N as in the paper, on one self-contained page."""

from collections.abc import Callable
from html import escape
from math import isnan

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from fl.simulate import MODELLED, Mean, Row, Settings, describe, quantity, with_error

_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f")
_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 60rem; padding: 1rem; color: #222 }
h1 { font-size: 1.5rem } h2 { font-size: 1.1rem; margin: 2rem 0 0 } p { margin: .3rem 0 }
.wide { overflow-x: auto } table { border-collapse: collapse; white-space: nowrap }
th, td { text-align: right; padding: .2rem .7rem; border-bottom: 1px solid #ddd } .note { color: #666 }
"""


def page(settings: Settings, rows: list[Row]) -> str:
    """The whole HTML document, plotly inside."""
    parts = [_section(title, text, figure) for title, text, figure in _figures(rows)]
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Schedule of {settings.clients:,} clients</title><style>{_STYLE}</style>
<script>{get_plotlyjs()}</script></head><body>
<h1>Who waits for whom: the schedule of {settings.clients:,} clients</h1>
<p>{escape(describe(settings))}.</p>
<p class="note">{escape(MODELLED.capitalize())}. Bars are standard errors.</p>
{"".join(parts)}
<h2>All settings</h2><div class="wide">{_table(rows)}</div>
</body></html>
"""


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
            line={"color": "black" if black else _COLOURS[i % len(_COLOURS)]},
        )
    return _dressed(figure, x_title, y_title)


def _unfolding(rows: list[Row]) -> go.Figure:
    figure = go.Figure()
    for i, row in enumerate(sorted(rows, key=lambda row: _wait_order(row.max_wait))):
        colour = "black" if row.max_wait is None else _COLOURS[i % len(_COLOURS)]
        figure.add_scatter(
            x=list(range(len(row.wave_shares))),
            y=row.wave_shares,
            name=_wait_name(row.max_wait),
            mode="lines+markers",
            line={"color": colour},
        )
    return _dressed(figure, "wave", "share of clients")


def _dressed(figure: go.Figure, x_title: str, y_title: str) -> go.Figure:
    figure.update_layout(
        template="plotly_white",
        height=380,
        margin={"l": 60, "r": 10, "t": 10, "b": 50},
        legend={"orientation": "h", "y": -0.2},
        showlegend=True,
        hovermode="x unified",
    )
    figure.update_xaxes(title=x_title, rangemode="tozero")
    figure.update_yaxes(title=y_title, rangemode="tozero")
    return figure


def _section(title: str, text: str, figure: go.Figure) -> str:
    drawn = figure.to_html(
        full_html=False, include_plotlyjs=False, config={"responsive": True, "displayModeBar": False}
    )
    return f"<h2>{escape(title)}</h2><p class='note'>{escape(text)}</p>{drawn}\n"


def _table(rows: list[Row]) -> str:
    names = (
        "M",
        "N",
        "rounds",
        "start at once",
        "depth",
        "mean waiting*",
        "time a round*",
        "energy a round*",
    )
    head = "".join(f"<th>{name}</th>" for name in names)
    body = "".join(
        f"<tr><td>{row.degree:g}<td>{'all' if row.max_wait is None else row.max_wait}<td>{row.rounds}"
        f"<td>{with_error(row.parallelism, 4)}<td>{with_error(row.depth, 2)}"
        f"<td>{quantity(row.waiting_s.mean, 's')}<td>{quantity(row.time_s.mean, 's')}"
        f"<td>{quantity(row.energy_j.mean, 'J')}</tr>"
        for row in rows
    )
    return f"<table><tr>{head}</tr>{body}</table><p class='note'>* modelled</p>"


def _wait_name(max_wait: int | None) -> str:
    return "N = M" if max_wait is None else f"N = {max_wait}"


def _wait_order(max_wait: int | None) -> float:
    return float("inf") if max_wait is None else max_wait


def _wait_place(row: Row) -> float:
    return row.degree if row.max_wait is None else row.max_wait
