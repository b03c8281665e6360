"""Result files and the tables made from them: nobody types a number by hand."""

import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from fl.compare import table as compare_table
from fl.errors import ConfigError

Result = dict[str, Any]
_SAME = ("commit", "cpu", "instruction_set", "threads", "versions")  # of results that are joined


def load(path: Path) -> Result:
    """The result in a file; anything else is a ConfigError."""
    try:
        result = json.loads(path.read_text())
    except OSError as wrong:
        raise ConfigError(f"expected a result file, got {path}: {wrong.strerror}") from wrong
    except ValueError as wrong:
        raise ConfigError(f"{path}: expected JSON, got {wrong}") from wrong
    if not isinstance(result, dict) or not ("algorithms" in result or _from_a_benchmark(result)):
        raise ConfigError(f"{path}: expected the result of a benchmark or a comparison, got something else")
    return result


def _from_a_benchmark(result: Result) -> bool:
    meta = result.get("meta")
    return {"rows", "summary"} <= result.keys() and isinstance(meta, dict) and meta.keys() >= {*_SAME, "date"}


def save(result: Result, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")


def console() -> Console:
    """Return a console as wide as the terminal, or wide enough for our tables if there is none."""
    return Console() if sys.stdout.isatty() else Console(width=180)


def show_rows(rows: list[Result], columns: dict[str, str], title: str, console: Console) -> None:
    """`columns`: key -> format, such as {"op": "", "median_ms": ".2f"}."""
    table = Table(title=title)
    for key, form in columns.items():
        table.add_column(key, justify="right" if form else "left")
    for row in rows:
        table.add_row(*(_text(row.get(key), form) for key, form in columns.items()))
    console.print(table)


def table(result: Result, by_shape: bool = False) -> str:
    """Markdown of a result; `by_shape`: the rates of `bench layers`."""
    if "algorithms" in result:
        return compare_table.short(result)
    return rates(result) if by_shape else markdown(result)


def markdown(result: Result, title: str = "") -> str:
    """The table of a result, or its summary as one: a row per case and density, one figure per cell."""
    summary, meta = result["summary"], result["meta"]
    if "table" in result:
        tables = [result["table"], *result.get("more", [])]
        return "\n".join(["\n\n".join(map(_ready, tables)), _origin(meta)])
    kept = "sparsity" if "matmul_gflops" in meta else "density"
    figures = list(
        dict.fromkeys(key for cells in summary.values() for cell in cells.values() for key in cell)
    )
    lines = [f"| {title or 'case'} | {kept} | " + " | ".join(figures) + " |"]
    lines.append("|---" + "|---:" * (len(figures) + 1) + "|")
    for case, cells in summary.items():
        for column in sorted(cells, key=float, reverse=True):
            shown = [f"{cells[column][key]:.2f}" if key in cells[column] else "" for key in figures]
            lines.append(f"| {case} | {column} | " + " | ".join(shown) + " |")
    return "\n".join([*lines, _origin(meta)])


def _ready(table: Result) -> str:
    """{"head": cells, "rows": lists of cells, "note": a sentence}, all of them text."""
    head, rows = table["head"], table["rows"]
    lines = ["| " + " | ".join(cells) + " |" for cells in [head, *rows]]
    lines.insert(1, "|---" * len(head) + "|")
    return "\n".join([*lines, f"\n{table['note']}"])


def _origin(meta: Result) -> str:
    workers = f"{meta['workers']} worker(s)" if "workers" in meta else f"{meta['threads']} thread(s)"
    return (
        f"\n{meta['cpu']}, {meta['instruction_set']}, {workers}, torch "
        f"{meta['versions']['torch']}, commit {meta['commit']}, {meta['date']}"
    )


def joined(results: list[Result]) -> Result:
    """Runs of one benchmark on other cases as one result: same commit, machine and threads."""
    if not all(map(_from_a_benchmark, results)):
        raise ConfigError("expected results of one benchmark, got a comparison")
    metas = [result["meta"] for result in results]
    for key in _SAME:
        if any(meta[key] != metas[0][key] for meta in metas):
            raise ConfigError(f"expected runs with one {key}, got {[meta[key] for meta in metas]}")
    summary: Result = {}
    for result in results:
        if repeated := summary.keys() & result["summary"].keys():
            raise ConfigError(f"expected every case once, got {sorted(repeated)} twice")
        summary |= result["summary"]
    dates = sorted({meta["date"] for meta in metas})
    rows = [row for result in results for row in result["rows"]]
    return {"meta": metas[0] | {"date": ", ".join(dates)}, "rows": rows, "summary": summary}


def rates(result: Result) -> str:
    """GFLOP/s of the stored weights in each direction, and their share of a large matrix product's rate."""
    if "matmul_gflops" not in result["meta"]:
        raise ConfigError("--rates: expected a result of `sparsefl bench layers`, got another")
    peak = result["meta"]["matmul_gflops"]
    names = {"forward": "y", "input_gradient": "dx", "weight_gradient": "dw"}
    cells: dict[str, dict[str, list[str]]] = {}
    for row in result["rows"]:
        direction = row["name"].removeprefix("sparsefl ")
        if direction in names and row["name"] != direction:
            where = cells.setdefault(f"{row['shape']}, batch {row['batch']}", {})
            share = f"{row['gflops']:.0f} ({row['gflops'] / peak:.0%})"
            kernel = "" if row["kernel"] == "sparse" else f" {row['kernel']}"
            where.setdefault(str(row["sparsity"]), []).append(f"{names[direction]} {share}{kernel}")
    columns = sorted({column for found in cells.values() for column in found}, key=float)
    lines = ["| GFLOP/s at sparsity | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for shape, found in cells.items():
        lines.append(f"| {shape} | " + " | ".join(", ".join(found.get(c, [])) for c in columns) + " |")
    meta = result["meta"]
    lines.append(
        f"\nOf {peak:.0f} GFLOP/s of torch's 1024x1024 matrix product in the same run; {meta['cpu']}, "
        f"{meta['instruction_set']}, {meta['threads']} thread(s), commit {meta['commit']}, {meta['date']}"
    )
    return "\n".join(lines)


def insert(text: str, path: Path, name: str) -> None:
    """Puts a table into a document, between the marks `<!-- bench NAME -->` and `<!-- end -->`."""
    begin, end = f"<!-- bench {name} -->", "<!-- end -->"
    document = path.read_text()
    before, found, after = document.partition(begin)
    _, closed, rest = after.partition(end)
    if not found or not closed:
        raise ConfigError(f"expected the marks {begin} and {end} in {path}")
    path.write_text(f"{before}{begin}\n{text}\n{end}{rest}")


def _text(value: Any, form: str) -> str:
    return "" if value is None else format(value, form) if form else str(value)
