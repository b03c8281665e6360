"""The curves of `sparsefl bench rounds`: a self-contained page, or a picture of it."""

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from bench import rounds
from bench.rounds import Row
from fl.page import BLUE, RED, Curve, Panel, band, curves, document, dressed, grid, table

TITLE = "Sparse kernels against dense ones"
_COLOURS = {"sparse": BLUE, "dense": RED}
_BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def page(result: dict[str, Any]) -> str:
    """HTML of a result of `bench rounds`, plotly inside."""
    shown, rows = result["table"], result["rows"]
    body = f"<h1>{escape(shown['head'][0])}</h1><p>{escape(shown['note'])}</p>"
    body += grid(_panels(rows)) + table(shown["rows"], shown["head"])
    return document(TITLE, body)


def draw(path: Path, text: str) -> None:
    """The page as it is, or (.png) as a browser shows it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".html":
        path.write_text(text, encoding="utf-8")
        return
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "page.html"
        source.write_text(text, encoding="utf-8")
        command = [_browser(), "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                   "--window-size=1280,1330", "--virtual-time-budget=20000",
                   f"--user-data-dir={folder}/profile", f"--screenshot={path.resolve()}",
                   source.as_uri()]  # fmt: skip
        subprocess.run(command, check=True, capture_output=True, timeout=240)


def check(path: Path) -> None:
    """Before an hour is spent on it."""
    if path.suffix not in (".html", ".png"):
        raise ValueError(f"expected a name that ends in .html or .png, got {path}")
    if path.suffix == ".png":
        _browser()


def _browser() -> str:
    found = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if found is None:
        raise ValueError(f"expected one of {list(_BROWSERS)} to draw a .png with, got none: use .html")
    return found


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
        Panel("Local training", "Seconds a round, summed over clients; mean over seeds.",
              dressed(train, "round", "seconds").update_yaxes(rangemode="tozero")),
        Panel("Density", "Mean over clients and seeds.",
              dressed(density, "round", "density").update_yaxes(rangemode="tozero")),
    ]  # fmt: skip


def _gaps(rows: Sequence[Row], seed: int) -> list[float]:
    sparse, dense = (rounds.curve(rows, seed, kernels, "accuracy") for kernels in rounds.KERNELS)
    return [a - b for a, b in zip(sparse, dense, strict=True)]
