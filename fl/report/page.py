"""Self-contained HTML pages with plotly figures: what all reports share.

Plotly is inside, and the page forbids itself to load anything from elsewhere. One column on a phone, two on
a wide screen. Colours are Okabe and Ito's, which colour-blind readers tell apart; dashes help.
"""

import re
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any, NamedTuple

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

BLUE, RED, GREEN, PINK, ORANGE, SKY, GREY = COLOURS = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f",
)  # fmt: skip
SCALE = [[0, "#f4f8fb"], [0.5, "#56a3d1"], [1, "#08306b"]]  # of heat maps: lightness alone tells
_DASHES = ("solid", "dash", "dot", "dashdot")
MANY = 60  # points, above which lines have no markers and bars no gaps
_FEW = 10  # points, up to which an axis has a tick for each; beyond, plotly's own steps are whole
_LABELS = 25  # on the axis of a heat map
_LONGEST = 18  # characters of such a label
_GRID = "#e4e7eb"

_FORBIDS = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
_STYLE = """
* { box-sizing: border-box }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 80rem; padding: 1rem; color: #1f2933 }
.svg { float: right; border: 1px solid #cbd2d9; border-radius: .3rem; background: none; color: #616e7c }
.svg { font: inherit; font-size: .75rem; padding: 0 .4rem; cursor: pointer }
@media print { .svg { display: none } }
h1 { font-size: 1.6rem; line-height: 1.2; margin: .5rem 0 } h2 { font-size: 1.1rem; margin: 0 }
p { margin: .3rem 0; max-width: 50rem; overflow-wrap: anywhere } .note { color: #616e7c; font-size: .9rem }
.grid { display: grid; gap: 2rem; margin: 2rem 0 }
section { min-width: 0 } .empty { background: #f5f7fa; color: #616e7c; padding: 1.5rem; text-align: center }
@media (min-width: 60rem) { .grid { grid-template-columns: 1fr 1fr } .wide { grid-column: 1 / -1 } }
.tiles { display: grid; gap: .75rem; margin: 1rem 0 }
.tiles { grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)) }
.tiles div { background: #f5f7fa; border-radius: .5rem; padding: .6rem .9rem }
.tiles b { display: block; font-size: 1.5rem; line-height: 1.3 }
.scroll { overflow-x: auto } table { border-collapse: collapse; margin: .5rem 0 }
th, td { text-align: right; padding: .25rem .6rem; border-bottom: 1px solid #e4e7eb; vertical-align: top }
th { color: #616e7c; font-weight: 600 } th:first-child, td:first-child { text-align: left; padding-left: 0 }
.facts td { text-align: left; overflow-wrap: anywhere } td { white-space: pre-wrap }
.numbers { font-size: .85rem } .numbers td { white-space: nowrap } .numbers th { vertical-align: bottom }
.numbers th, .numbers td { padding: .25rem .4rem }
.numbers th:first-child, .numbers td:first-child { position: sticky; left: 0; background: #fff }
pre { font-size: .85rem; white-space: pre-wrap; overflow-wrap: anywhere; background: #f5f7fa; padding: 1rem }
summary { cursor: pointer; font-weight: 600; margin: .5rem 0 }
@media (max-width: 30rem) { th, td { padding: .25rem .3rem; font-size: .85rem } }
"""
# a finger on a figure scrolls the page, not zoom the figure
_TOUCH = """
if (matchMedia("(pointer: coarse)").matches)
  for (const figure of document.querySelectorAll(".js-plotly-plot"))
    Plotly.relayout(figure, {"xaxis.fixedrange": true, "yaxis.fixedrange": true});
"""
_DOWNLOAD = """
for (const button of document.querySelectorAll("button.svg"))
  button.onclick = () =>
    Plotly.downloadImage(button.dataset.figure, {format: "svg", filename: button.dataset.file});
"""


class Panel(NamedTuple):
    """A figure under its title, or why there is none."""

    title: str
    text: str
    figure: go.Figure | None
    missing: str = "No data."
    wide: bool = False


class Curve(NamedTuple):
    """One line of a figure. A value that is None leaves a gap."""

    name: str
    x: Sequence[float]
    y: Sequence[float | None]
    colour: str | None = None
    dash: str | None = None


def document(title: str, body: str) -> str:
    """Return the whole page; `body` is HTML, `title` is text."""
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_FORBIDS}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title><style>{_STYLE}</style>
<script>{get_plotlyjs()}</script></head><body>
{body}
<script>{_TOUCH}{_DOWNLOAD}</script>
</body></html>
"""


def grid(panels: Iterable[Panel]) -> str:
    """All panels; the figures have the ids figure-0, figure-1 and so on."""
    return f'<div class="grid">{"".join(_section(i, panel) for i, panel in enumerate(panels))}</div>\n'


def table(rows: Iterable[Sequence[str]], head: Sequence[str] = (), kind: str = "") -> str:
    """Return a table of text as HTML. `kind`: "facts" (name, value) or "numbers" (first column fixed)."""
    top = f"<tr>{''.join(f'<th>{escape(name)}</th>' for name in head)}</tr>" if head else ""
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="scroll"><table class="{kind}">{top}{body}</table></div>\n'


def tiles(figures: Iterable[tuple[str, str, str]]) -> str:
    """The figures that matter most, large: name, figure, remark."""
    shown = "".join(
        f'<div><span class="note">{escape(name)}</span><b>{escape(figure)}</b>'
        f'<span class="note">{escape(remark)}</span></div>'
        for name, figure, remark in figures
    )
    return f'<div class="tiles">{shown}</div>\n'


def look(i: int) -> tuple[str, str]:
    """Return colour and dash of line number i."""
    return COLOURS[i % len(COLOURS)], _DASHES[i // len(COLOURS) % len(_DASHES)]


def curves(lines: Sequence[Curve]) -> go.Figure:
    """Lines in the order of the colours, unless they bring their own. Dress it next."""
    figure = go.Figure()
    for i, line in enumerate(lines):
        colour, dash = look(i)
        figure.add_scatter(
            x=list(line.x),
            y=list(line.y),
            name=plain(line.name),
            mode="lines" if len(line.x) > MANY else "lines+markers",
            line={
                "color": line.colour or colour,
                "dash": line.dash or dash,
                "width": 2,
            },
            marker={"size": 5},
        )
    return figure


def band(
    figure: go.Figure, x: Sequence[float], low: Any, high: Any, name: str, colour: str, opacity: float = 0.2
) -> None:
    """The area between two lines."""
    edge = {"width": 0, "color": colour}
    shared: dict[str, Any] = {"x": list(x), "mode": "lines", "line": edge, "legendgroup": name}
    figure.add_scatter(**shared, y=list(high), showlegend=False, name=f"{name}, upper", hoverinfo="skip")
    shade = _faint(colour, opacity)
    figure.add_scatter(**shared, y=list(low), name=name, fill="tonexty", fillcolor=shade, hoverinfo="skip")


def level(figure: go.Figure, y: float, name: str) -> None:
    """A horizontal line that the legend names."""
    figure.add_hline(y, name=plain(name), showlegend=True, line={"color": GREY, "dash": "dash", "width": 1.5})


def mark(figure: go.Figure, xs: Sequence[float], name: str, dash: str = "dot") -> None:
    """Vertical lines under one name in the legend."""
    for i, x in enumerate(xs):
        line = {"color": "#1f2933", "dash": dash, "width": 1.5}
        figure.add_vline(x, name=plain(name), legendgroup=name, showlegend=i == 0, line=line)


def heat(
    x: Sequence[float],
    names: Sequence[str],
    z: Sequence[Sequence[float]],
    unit: str,
    top: float | None = None,
) -> go.Figure:
    """z[name][x] as colours from 0 to `top`, first name above."""
    wanted = range(0, len(names), -(-len(names) // _LABELS))
    figure = go.Figure()
    figure.add_heatmap(
        x=list(x),
        y=list(range(len(names))),
        z=[list(row) for row in z],
        zmin=0,
        zmax=top,
        colorscale=SCALE,
        xgap=1 if len(x) <= MANY else 0,
        ygap=1,
        colorbar={
            "title": {"text": unit, "side": "right", "font": {"size": 13}},
            "thickness": 10,
            "outlinewidth": 0,
            "xpad": 4,
        },
        customdata=[[plain(name)] * len(x) for name in names],
    )
    figure.update_yaxes(
        tickvals=[*wanted], ticktext=[plain(_short(names[i])) for i in wanted], autorange="reversed"
    )
    return figure


def dressed(figure: go.Figure, x_title: str, y_title: str, height: int = 360) -> go.Figure:
    """Give a figure the look that all figures share, and return it."""
    axes = {"gridcolor": _GRID, "zerolinecolor": _GRID, "linecolor": "#9aa5b1", "automargin": True}
    figure.update_layout(
        template="none",
        height=height,
        margin={"l": 10, "r": 10, "t": 10, "b": 10},
        font={"family": "system-ui, sans-serif", "size": 13, "color": "#3e4c59"},
        legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "font": {"size": 12}},
        showlegend=True,
        hovermode="x unified",
        barmode="overlay",
    )
    titles = {"standoff": 8, "font": {"size": 13}}
    plain_x = {"showgrid": False, "showline": True, "zeroline": False}
    figure.update_xaxes(title={"text": x_title, **titles}, **axes | plain_x)
    figure.update_yaxes(title={"text": y_title, **titles}, **axes)
    return figure


def whole_ticks(figure: go.Figure, points: int) -> go.Figure:
    """An axis of `points` rounds or clients, from 0 on, has no tick between two of them."""
    return figure.update_xaxes(dtick=1) if points <= _FEW else figure


def plain(text: str) -> str:
    """Return `text` escaped: plotly reads a few tags."""
    return escape(text, quote=False)


def _section(i: int, panel: Panel) -> str:
    kind, download = ' class="wide"' if panel.wide else "", ""
    if panel.figure is None:
        shown = f'<p class="empty">{escape(panel.missing)}</p>'
    else:
        shown = panel.figure.to_html(
            full_html=False,
            include_plotlyjs=False,
            div_id=f"figure-{i}",
            config={"responsive": True, "displayModeBar": False},
        )
        file = re.sub("[^a-z0-9]+", "-", panel.title.lower()).strip("-")
        label = escape(f"save {panel.title} as SVG")
        download = (
            f'<button class="svg" data-figure="figure-{i}" data-file="{file}" title="{label}">SVG</button>'
        )
    head = f'{download}<h2>{escape(panel.title)}</h2><p class="note">{escape(panel.text)}</p>'
    return f"<section{kind}>{head}{shown}</section>\n"


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _faint(colour: str, opacity: float) -> str:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red}, {green}, {blue}, {opacity})"
