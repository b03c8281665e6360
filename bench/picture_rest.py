"""Pictures of `sparsefl bench report`: client-rounds, bytes against the bound, accuracy against cost."""

from typing import Any

import plotly.graph_objects as go

from fl.report.page import Curve, Panel, curves, dressed, level, look, plain
from sparsefl.bench.picture_speed import where

Result = dict[str, Any]
_WAYS = {"program": "sparsefl", "program, two workers": "sparsefl, two workers", "loop": "plain PyTorch loop",
         "compiled": "loop with torch.compile", "dense": "sparsefl, dense kernels",
         "layers": "sparsefl, layer by layer"}  # fmt: skip
_CODES = {"fp32": "sparsefl, packed", "entropy": "sparsefl, values as they are",
          "bitmap": "sparsefl, mask as bits",
          "zstd planes": "zstandard of planes", "zstd sparse": "zstandard of bits and values",
          "zstd dense": "zstandard of the dense tensor"}  # fmt: skip


def clients(result: Result) -> Panel:
    """Client-rounds per second of `bench clients`, per network, at one density."""
    rows = result["rows"]
    densities = sorted({row["density"] for row in rows}, reverse=True)
    density = 0.2 if 0.2 in densities else densities[0]
    figure = go.Figure()
    for i, (key, name) in enumerate(_WAYS.items()):
        found = {r["network"]: r["per_second"] for r in rows if r["name"] == key and r["density"] == density}
        if found:
            figure.add_bar(x=list(found), y=list(found.values()), name=name, marker_color=look(i)[0])
    dressed(figure, "", "client-rounds per second", 420).update_layout(barmode="group", hovermode="closest")
    figure.update_yaxes(type="log", dtick="D2").update_xaxes(tickangle=0)
    text = (
        f"Density {density:g}, {where(result['meta'])}. The loops train and test only; ours also averages, "
        "measures drift, grows and writes a message."
    )
    return Panel("Client-rounds per second, per network", text, figure)


def scale(result: Result | None) -> Panel:
    """Client-rounds per second against the number of clients (`bench scale`)."""
    title = "Client-rounds per second against the number of clients"
    if result is None:
        return Panel(title, "", None, "No result of `sparsefl bench scale` here.")
    known = sorted((int(k), cell["clients_per_s"]) for k, cell in result["summary"].items())
    figure = curves([Curve("sparsefl", [k for k, _ in known], [rate for _, rate in known])])
    dressed(figure, "clients (K)", "client-rounds per second").update_xaxes(type="log", dtick=1)
    return Panel(title, f"{where(result['meta'])}.", figure.update_yaxes(rangemode="tozero"))


def wire(result: Result) -> Panel:
    """Bytes of a first message over the bound, by density, for the first network of `bench wire`."""
    rows = [row for row in result["rows"] if row["stage"] == "first"]
    model = rows[0]["model"]
    rows = sorted((row for row in rows if row["model"] == model), key=lambda row: -row["density"])
    lines = [
        Curve(name, [r["density"] for r in rows if r["name"] == key],
              [r["of_bound"] for r in rows if r["name"] == key])
        for key, name in _CODES.items()
    ]  # fmt: skip
    once = [row for row in rows if row["name"] == "bitmap"]
    for key, name in {"bytes_csr": "CSR, int32", "bytes_dense": "dense float32"}.items():
        lines.append(Curve(name, [r["density"] for r in once], [r[key] / r["bytes_bound"] for r in once]))
    figure = curves([line for line in lines if line.x])
    level(figure, 1.0, "bound")
    dressed(figure, "density", "bytes over the bound", 420)
    figure.update_yaxes(type="log", dtick="D2").update_xaxes(autorange="reversed")
    text = (
        f"{model}. Bound: 4 bytes per value and the entropy of the mask. Packed messages are below it: "
        "weights are no random bits. Exact codes only; rounded values (bf16, q8) are shorter still."
    )
    return Panel("Bytes of a message against the bound", text, figure)


def accuracy(stem: str, result: Result, key: str) -> Panel:
    """Accuracy of every algorithm of a comparison against bytes or FLOP."""
    unit = {"bytes_total": "bytes sent, all clients", "flop_total": "FLOP of training, all clients"}[key]
    figure = go.Figure()
    for i, (name, entry) in enumerate(result["algorithms"].items()):
        figures = entry["figures"]
        if not figures or not figures.get(key) or not figures.get("accuracy_last5"):
            continue
        reached = figures["accuracy_last5"]
        figure.add_scatter(
            x=[figures[key]["mean"]], y=[100 * reached["mean"]], name=plain(name), mode="markers",
            error_y={"type": "data", "array": [100 * (reached["sd"] or 0)], "visible": bool(reached["sd"])},
            marker={"color": look(i)[0], "size": 11, "symbol": i % 8},
        )  # fmt: skip
    dressed(figure, unit, "accuracy, %").update_layout(hovermode="closest")
    figure.update_xaxes(type="log", dtick="D2")
    text = (
        f"{result['name']}: {result['num_clients']} clients, {result['num_rounds']} rounds; mean of the last "
        "five rounds over all clients, bars: deviation over seeds where there are several. Methods with a "
        "server train a part of the clients in a round."
    )
    what = "bytes" if key == "bytes_total" else "FLOP"
    return Panel(f"Accuracy against {what} ({stem.removeprefix('compare-')})", text, figure)
