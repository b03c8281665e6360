"""`sparsefl bench report`: all results of a folder on one page, and its figures as pictures.

What a file is, is seen from what it holds; a file that is no result is refused. Nothing is measured here.
"""

from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from fl.errors import ConfigError
from fl.report import picture
from fl.report.page import Panel, document, grid, table
from sparsefl.bench import picture_rest as rest
from sparsefl.bench import picture_speed as speed
from sparsefl.bench import report

Result = dict[str, Any]
TITLE = "sparsefl: what was measured"
_WIDTH, _HEIGHT = 900, 640  # of a picture
_SHOWN_COMPARISONS = 3  # algorithms, from which on a comparison has pictures


def load(folder: Path) -> dict[str, Result]:
    """{name: result} of all .json files of a folder."""
    files = sorted(folder.glob("*.json"))
    if not files:
        raise ConfigError(f"expected result files (*.json) in {folder}, got none")
    return {file.stem: report.load(file) for file in files}


def kind(result: Result) -> str:
    """Which benchmark it comes from, "" for those without a picture."""
    if "algorithms" in result:
        return "compare"
    row = result["rows"][0] if result["rows"] else {}
    keys = {"layers": ("family", "sparsity"), "models": ("model", "flop_ratio"), "wire": ("mask_bytes",),
            "clients": ("network", "per_second"), "ops": ("op", "least_bytes")}  # fmt: skip
    return next((name for name, needed in keys.items() if row.keys() >= set(needed)), "")


def panels(results: dict[str, Result]) -> Iterator[tuple[str, Panel]]:
    """(name of its picture, panel), in the order of the page."""
    for stem, result in _of(results, "models"):
        yield f"speed-{stem}", speed.speed(
            f"Training steps against dense PyTorch ({speed.where(result['meta'])})",
            "Forward, loss, backward and update, against the fastest float32 rival of the run.",
            speed.of_models(result),
        )  # fmt: skip
        if best := speed.of_models(result, "vs_best"):
            yield f"speed-{stem}-best", speed.speed(
                f"The same against the fastest of all, bf16 included ({speed.where(result['meta'])})",
                "Ours computes in the precision of the title, rivals in float32 or in bf16.",
                best,
            )  # fmt: skip
    for stem, result in _of(results, "layers"):
        yield f"speed-{stem}", speed.speed(
            f"Layers against dense PyTorch ({speed.where(result['meta'])})",
            "Forward and both gradients; geometric mean over the shapes of a family (all: table below).",
            speed.by_family(result),
        )  # fmt: skip
        yield f"roofline-{stem}", speed.roofline(result, _bandwidth(results, result["meta"]))
    for stem, result in _of(results, "clients"):
        yield f"client-rounds-{stem}", rest.clients(result)
    yield "scale", rest.scale(results.get("scale"))
    for stem, result in _of(results, "wire"):
        yield f"bytes-{stem}", rest.wire(result)
    for stem, result in _of(results, "compare"):
        if len(result["algorithms"]) >= _SHOWN_COMPARISONS:
            for key in ("bytes_total", "flop_total"):
                yield f"accuracy-{stem}-{key.removesuffix('_total')}", rest.accuracy(stem, result, key)


def page(results: dict[str, Result]) -> str:
    """HTML, plotly inside."""
    body = f"<h1>{TITLE}</h1><p>{_INTRODUCTION}</p>"
    body += grid(panel for _, panel in panels(results))
    body += "<h2>Break-even</h2><p>The density up to which sparse is faster than dense PyTorch.</p>"
    body += table(break_even(results), ("case", "where", "break-even density"), "numbers")
    body += "<h2>Where the rival was faster</h2><p>Every ratio below 1 of the summaries.</p>"
    body += table(lost(results), ("result", "case", "at", "against", "times faster"), "numbers")
    body += "<h2>Where the results come from</h2>" + table(origins(results), ORIGIN, "numbers")
    return document(TITLE, body)


_INTRODUCTION = escape(
    "Made by `sparsefl bench report` from the result files. Every ratio is against a rival that ran in the "
    "same process, in turns. Above 1 we are faster. No ratio mixes results of different dates or processors."
)
ORIGIN = ("result", "date", "commit", "processor", "cores", "gpu", "python", "torch", "sparsefl")


def break_even(results: dict[str, Result]) -> list[tuple[str, str, str]]:
    lines = [line for _, result in _of(results, "models") for line in speed.of_models(result)]
    lines += [line for _, result in _of(results, "layers") for line in speed.of_layers(result)]
    return [(line.name, line.where, line.break_even()) for line in lines]


def lost(results: dict[str, Result]) -> list[tuple[str, str, str, str, str]]:
    """(result, case, density or sparsity, rival, ratio) of each ratio below 1; `worst`: the worst shape."""
    found = []
    for stem, result in results.items():
        at = "sparsity" if kind(result) == "layers" else "density"
        if kind(result) not in ("", "compare"):
            for case, cells in result["summary"].items():
                for column, cell in cells.items():
                    for rival, ratio in cell.items():
                        if (rival.startswith("vs_") or rival in ("worst", "two_workers")) and ratio < 1:
                            found.append((stem, case, f"{at} {column}", rival, f"{ratio:.2f}"))
    return found


def origins(results: dict[str, Result]) -> list[tuple[str, ...]]:
    """Date, commit, hardware and versions of every result."""
    found: list[tuple[str, ...]] = []
    for stem, result in results.items():
        if "algorithms" in result:
            known = result["environment"]
            cpu = f"{known['cpu']}, {known['instruction set in use']}"
            more = ("not recorded", known["commit"], cpu, known["cores"], known["gpu"], known["python"])
            found.append((stem, *map(str, more), known["torch"], known["sparsefl"]))
        else:
            meta = result["meta"]
            cpu = f"{meta['cpu']}, {speed.where(meta)}"
            more = (meta["date"], meta["commit"], cpu, meta["cores"], meta["gpu"] or "none", meta["python"])
            found.append((stem, *map(str, more), meta["versions"]["torch"], meta["versions"]["sparsefl"]))
    return found


def command(folder: Path, out: Path, pictures: bool, tell: Any) -> int:
    """Write the page and its pictures below `out`, and say what was written."""
    results = load(folder)
    picture.check(out / "report.html")
    if pictures:
        picture.check(out / "report.png")
    picture.draw(out / "report.html", page(results))
    tell(f"{out / 'report.html'}: {len(results)} results")
    if pictures:
        for name, panel in panels(results):
            if panel.figure is not None:
                one = document(panel.title, grid([panel._replace(wide=True)]))
                one = one.replace('class="svg"', 'class="svg" hidden')
                picture.draw(out / f"{name}.png", one, _WIDTH, _HEIGHT)
                tell(f"{out / name}.png")
    return 0


def _of(results: dict[str, Result], wanted: str) -> Iterator[tuple[str, Result]]:
    return ((stem, result) for stem, result in results.items() if kind(result) == wanted)


def _bandwidth(results: dict[str, Result], meta: Result) -> float | None:
    """GB/s of a copy by `bench ops` on that processor, instruction set and number of threads."""
    same = ("cpu", "instruction_set", "threads")
    for _, result in _of(results, "ops"):
        if all(result["meta"][key] == meta[key] for key in same):
            return max(row.get("copy_gb_s") or 0.0 for row in result["rows"]) or None
    return None
