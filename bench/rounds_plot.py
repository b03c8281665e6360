"""The curves of `sparsefl bench rounds` on a self-contained page."""

from collections.abc import Sequence
from html import escape
from typing import Any

from fl.report.page import BLUE, RED, Curve, Panel, band, curves, document, dressed, grid, table
from sparsefl.bench import rounds
from sparsefl.bench.rounds import Row

TITLE = "Sparse kernels against dense ones"
_COLOURS = {"sparse": BLUE, "dense": RED}


def page(result: dict[str, Any]) -> str:
    """HTML of a result of `bench rounds`, plotly inside."""
    shown, rows = result["table"], result["rows"]
    body = f"<h1>{escape(shown['head'][0])}</h1><p>{escape(shown['note'])}</p>"
    body += grid(_panels(rows)) + table(shown["rows"], shown["head"])
    return document(TITLE, body)


def _panels(rows: Sequence[Row]) -> list[Panel]:
    x = rounds.values(rows, "round")
    accuracy = curves([Curve(k, x, rounds.means(rows, k, "accuracy"), _COLOURS[k]) for k in rounds.KERNELS])
    for kernels in rounds.KERNELS:
        spreads = [rounds.spread_of(values) for values in rounds.by_round(rounds.all_curves(rows, kernels))]
        low, high = ([s["mean"] + sign * s["sd"] for s in spreads] for sign in (-1, 1))
        band(accuracy, x, low, high, f"{kernels}, sd over seeds", _COLOURS[kernels], 0.12)
    gaps = curves([Curve(f"seed {s}", x, _gaps(rows, s)) for s in rounds.values(rows, "seed")])
    train = curves([Curve(k, x, rounds.means(rows, k, "train_s"), _COLOURS[k]) for k in rounds.KERNELS])
    density = curves([Curve(k, x, rounds.means(rows, k, "density"), _COLOURS[k]) for k in rounds.KERNELS])
    return [
        Panel("Accuracy", "After local training, mean over clients and seeds.",
              dressed(accuracy, "round", "accuracy")),
        Panel("Accuracy, sparse less dense", "The two runs of every seed.",
              dressed(gaps, "round", "difference")),
        Panel("Local training", "Seconds per round, summed over clients; mean over seeds.",
              dressed(train, "round", "seconds").update_yaxes(rangemode="tozero")),
        Panel("Density", "Mean over clients and seeds.",
              dressed(density, "round", "density").update_yaxes(rangemode="tozero")),
    ]  # fmt: skip


def _gaps(rows: Sequence[Row], seed: int) -> list[float]:
    sparse, dense = (rounds.curve(rows, seed, kernels, "accuracy") for kernels in rounds.KERNELS)
    return [a - b for a, b in zip(sparse, dense, strict=True)]
