"""C(theta) of `sparsefl bench cost --theta` on a self-contained page: two figures per data set."""

from html import escape

import plotly.graph_objects as go

from fl.report.page import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PINK,
    RED,
    SKY,
    Curve,
    Panel,
    curves,
    document,
    dressed,
    grid,
)
from fl.world.clock import dollars
from sparsefl.bench import theta
from sparsefl.bench.theta import Row

TITLE = "Total cost against theta, from first principles"
HEIGHT = 1920  # pixels of the .png with all three data sets
READINGS = {"client_j": "mean energy per client", "energy_j": "energy of all clients"}
_THETAS = [i / 1000 for i in range(20)] + [i / 50 for i in range(1, 51)]  # close where curves cross
_COLOURS = {
    "FedAvg": GREY, "FedDST": GREEN, "GossipFL": ORANGE, "DisPFL": SKY, "DFedSAM": PINK,
    theta.UNPRUNED: "#1f2933", "DA-DPFL, Dir": BLUE, "DA-DPFL, Pat": RED,
}  # fmt: skip


def page(rows: list[Row]) -> str:
    """HTML of the rows of bench.theta, plotly inside."""
    body = f"<h1>{escape(TITLE)}</h1><p>{escape(theta.modelled(rows))}</p>"
    panels = [_panel(rows, data, energy) for data in theta.tasks(rows) for energy in READINGS]
    return document(TITLE, body + grid(panels))


def _panel(rows: list[Row], data: str, energy: str) -> Panel:
    text = f"All {theta.ROUNDS[data]} rounds, modelled. Dotted: with a server; thick: DA-DPFL."
    return Panel(f"{data}, {READINGS[energy]}", text, _figure(theta.of(rows, data), energy))


def _figure(found: dict[str, Row], energy: str) -> go.Figure:
    lines = []
    for names, row in _alike(found):
        costs = [row["rounds"] * dollars(at, row["time_s"], row[energy]) for at in _THETAS]
        dash = "dot" if names[0] in theta.SERVER else "dash" if theta.UNPRUNED in names else "solid"
        lines.append(Curve(", ".join(names), _THETAS, costs, _COLOURS.get(names[0]), dash))
    figure = curves(lines).update_traces(mode="lines")
    for trace in figure.data:
        trace.line.width = 3 if trace.name.startswith(theta.OURS) else 1.5
    dressed(figure, "theta", "cost ($, log)", 430)
    return figure.update_yaxes(type="log", exponentformat="SI", hoverformat=".4~s", dtick=1)


def _alike(found: dict[str, Row]) -> list[tuple[list[str], Row]]:
    """Methods of the same cost in one line."""
    groups: dict[tuple[float, float], list[str]] = {}
    for name, row in found.items():
        groups.setdefault((row["time_s"], row["energy_j"]), []).append(name)
    return [(names, found[names[0]]) for names in groups.values()]
