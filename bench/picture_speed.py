"""Pictures of `sparsefl bench report`: speed against density, where dense wins, and the roofline."""

from collections.abc import Iterable, Mapping
from math import log
from typing import Any, NamedTuple

import plotly.graph_objects as go

from fl.report.page import Curve, Panel, curves, dressed, level, look
from sparsefl.bench.layers import SHAPES, Shape

Result = dict[str, Any]
_TICKS = (0.5, 0.7, 1, 1.5, 2, 3, 4, 5, 7, 10, 15, 20, 30)
_DIRECTIONS = {"sparsefl forward": "forward", "sparsefl input_gradient": "input gradient",
               "sparsefl weight_gradient": "weight gradient"}  # fmt: skip


class Line(NamedTuple):
    """Speed over dense PyTorch, by density in falling order."""

    name: str
    where: str  # instruction set, threads, precision
    points: dict[float, float]

    def break_even(self) -> str:
        """The density at which both are as fast, between measured ones on a line in the logarithm."""
        if (crossing := self.crossing()) is not None:
            return f"{crossing:.2f}"
        most, least = max(self.points), min(self.points)
        if self.points[most] < 1:
            return f"below {least:g}"
        slower = ", ".join(f"{x:g}" for x, y in self.points.items() if y < 1)
        return f"above {most:g}" + (f", but slower at {slower}" if slower else "")

    def crossing(self) -> float | None:
        """The largest such density inside the measured ones."""
        known = sorted(self.points.items(), reverse=True)
        for (high, slow), (low, fast) in zip(known, known[1:], strict=False):
            if slow < 1 <= fast:
                return high + (low - high) * log(slow) / (log(slow) - log(fast))
        return None


def where(meta: Mapping[str, Any]) -> str:
    threads = f"{meta['threads']} thread" + ("s" if meta["threads"] > 1 else "")
    return f"{meta['instruction_set']}, {threads}, {meta.get('precision', 'float32')}"


def of_layers(result: Result) -> list[Line]:
    """A line per shape and batch of `bench layers`: the faster of PyTorch's layouts over ours."""
    found: dict[tuple[str, int], dict[float, float]] = {}
    for row in result["rows"]:
        if row["times_ours"] is not None and row["name"].startswith("torch") and "CSR" not in row["name"]:
            points = found.setdefault((row["shape"], row["batch"]), {})
            density = round(1 - row["sparsity"], 4)
            points[density] = min(points.get(density, float("inf")), row["times_ours"])
    place = where(result["meta"])
    return [Line(f"{shape}, batch {batch}", place, points) for (shape, batch), points in found.items()]


def by_family(result: Result) -> list[Line]:
    """The summary of `bench layers`: geometric means over the shapes of a family."""
    place = where(result["meta"])
    return [
        Line(
            name, place, {round(1 - float(s), 4): c["vs_dense"] for s, c in cells.items() if "vs_dense" in c}
        )
        for name, cells in result["summary"].items()
    ]


def of_models(result: Result, key: str = "vs_dense") -> list[Line]:
    """A line per network and batch of `bench models`; `key`: against whom."""
    place, found = where(result["meta"]), []
    for name, cells in result["summary"].items():
        if points := {float(d): cell[key] for d, cell in cells.items() if key in cell}:
            found.append(Line(name, place, points))
    return found


def speed(title: str, text: str, lines: Iterable[Line]) -> Panel:
    """Speed over dense against density; crosses where a line falls below 1."""
    shown = [line for line in lines if len(line.points) > 1]
    if not shown:
        return Panel(title, text, None, "No result with two densities.")
    drawn = [Curve(line.name, *_xy(line)) for line in shown]
    figure = curves(drawn)
    if crossings := [x for line in shown if (x := line.crossing()) is not None]:
        figure.add_scatter(
            x=crossings, y=[1.0] * len(crossings), mode="markers", name="break-even",
            marker={"symbol": "x", "size": 12, "color": "#1f2933"},
        )  # fmt: skip
    level(figure, 1.0, "dense PyTorch")
    dressed(figure, "density (share of the weights that is stored)", "times faster than dense", 420)
    figure.update_yaxes(type="log", tickvals=_TICKS).update_xaxes(autorange="reversed")
    return Panel(title, text, figure)


def _xy(line: Line) -> tuple[list[float], list[float]]:
    known = sorted(line.points.items(), reverse=True)
    return [x for x, _ in known], [y for _, y in known]


def roofline(result: Result, copy_gb_s: float | None) -> Panel:
    """Rates of the layers' passes against FLOP per byte, under the roofs of the same machine."""
    title, meta = f"Roofline of the sparse layers ({where(result['meta'])})", result["meta"]
    peak = meta["matmul_gflops"]
    text = (
        f"GFLOP/s of the stored weights, measured; FLOP per byte counted from the shapes (every input, "
        f"output and weight once). Flat roof: torch's 1024x1024 matrix product in the same run, {peak:.0f} "
        "GFLOP/s; Winograd's algorithm may pass it. "
        + (f"Slope: the bandwidth of a copy, {copy_gb_s:.0f} GB/s, from `bench ops`." if copy_gb_s
           else "No slope: `bench ops` was not run on this processor.")
    )  # fmt: skip
    figure, shapes = go.Figure(), {shape.name: shape for shape in SHAPES}
    for i, (name, direction) in enumerate(_DIRECTIONS.items()):
        rows = [row for row in result["rows"] if row["name"] == name and row["shape"] in shapes]
        colour, _ = look(i)
        figure.add_scatter(
            x=[intensity(shapes[row["shape"]], row["batch"], 1 - row["sparsity"]) for row in rows],
            y=[row["gflops"] for row in rows], mode="markers", name=direction,
            marker={"color": colour, "size": 6, "opacity": 0.75},
            text=[f"{row['shape']}, batch {row['batch']}, density {1 - row['sparsity']:.2f}" for row in rows],
        )  # fmt: skip
    known = [x for trace in figure.data for x in trace.x]
    if not known:
        return Panel(title, text, None, "No shape of this result is known here.")
    low, high = min(known) / 2, max(known) * 2
    xs = [low * (high / low) ** (i / 60) for i in range(61)]
    ys = [min(peak, copy_gb_s * x) if copy_gb_s else peak for x in xs]
    figure.add_scatter(x=xs, y=ys, mode="lines", name="roof", line={"color": "#1f2933", "width": 2})
    dressed(figure, "FLOP per byte (counted)", "GFLOP/s", 420).update_layout(hovermode="closest")
    figure.update_xaxes(type="log", dtick="D2").update_yaxes(type="log", dtick="D2")
    return Panel(title, text, figure)


def intensity(shape: Shape, batch: int, density: float) -> float:
    """FLOP of the stored weights per byte that has to move once: inputs, outputs, values and bitmap."""
    side = (shape.size - 1) // shape.stride + 1
    inputs, outputs = shape.into * shape.size**2, shape.out * side**2
    weights, uses = shape.into * shape.out * shape.kernel**2, side**2
    moved = 4 * batch * (inputs + outputs) + weights * (4 * density + 1 / 8)
    return 2 * batch * weights * density * uses / moved
