"""The files of a comparison (fl/compare/runs.py), finished or not: report.html, comparison.json and tables
as comparison.md, comparison.csv and comparison.tex.

write(path)                 all of them, from what the directory holds
draw(path, comparison)      accuracy against rounds and against bytes, as .html, .png or .svg
"""

import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path

from fl.compare import figures as compare_figures
from fl.compare import latex, spreadsheet
from fl.compare import results as compare_results
from fl.compare import table as compare_table
from fl.compare.results import Comparison, Result
from fl.report import page, picture, report
from fl.run.names import COMPARISON, COMPARISON_CSV, COMPARISON_LATEX, COMPARISON_TEXT
from fl.run.recorded import Record
from fl.run.rundir import REPORT, RunDirError, write_atomic
from fl.units import counted, duration, size

TABLES: Mapping[str, tuple[str, Callable[[Record], str]]] = {  # format: its file, and what makes the text
    "markdown": (COMPARISON_TEXT, compare_table.markdown),
    "csv": (COMPARISON_CSV, spreadsheet.text),
    "latex": (COMPARISON_LATEX, latex.text),
}


def write(path: Path) -> Comparison:
    """Read the comparison in `path` and write its files."""
    comparison = compare_results.read(path)
    told = comparison.to_json()
    texts = {
        COMPARISON: json.dumps(told, indent=1, allow_nan=False) + "\n",
        **{name: made(told) for name, made in TABLES.values()},
        REPORT: html(comparison, told),
    }
    for name, text in texts.items():
        try:
            write_atomic(path / name, text.encode())
        except OSError as wrong:
            raise RunDirError(f"cannot write {path / name}: {wrong.strerror or wrong}") from wrong
    return comparison


def draw(path: Path, comparison: Comparison) -> None:
    """Two figures for a README."""
    lines = compare_figures.drawn(comparison)
    panels = [compare_figures.over_rounds(lines), compare_figures.over_bytes(lines)]
    picture.draw(path, page.document(comparison.plan.base.name, page.grid(panels)), 1280, 620)


def html(comparison: Comparison, told: Record) -> str:
    """The whole page."""
    parts = [
        head(comparison, told),
        page.grid(compare_figures.panels(comparison)),
        settings(comparison),
        runs(told),
        report.facts(told["environment"]),
    ]
    return page.document(f"{told['name']}: {', '.join(told['algorithms'])}", "".join(parts))


def head(comparison: Comparison, told: Record) -> str:
    """What was compared, the table, and what the target accuracy cost."""
    base = comparison.plan.base
    rounds = counted(base.num_rounds, "round")
    what = f"{base.data.name}, {base.model.name}, {base.num_clients} clients, {rounds}"
    missing = _list("Not finished:", compare_table.notes(told))
    differing = _list("Settings:", compare_table.differences(told))
    shown, cost = compare_table.results(told), compare_table.to_target(told)
    costs = page.table(cost.rows, cost.head, "numbers") if told["target"] else ""
    names = ", ".join(comparison.plan.entries)
    about = "".join(f"<p>{escape(text)}</p>\n" for text in (names, what, base.description) if text)
    return f"""<h1>{escape(base.name)}: a comparison</h1>
{about}{missing}{page.table(shown.rows, shown.head, "numbers")}{differing}
<p class="note">{escape(compare_table.MEANING)} {escape(report.modelled(base))}</p>
<h2>{escape(compare_table.target(told))}</h2>
<p class="note">{escape(_TARGET)}</p>{costs}"""


def _list(head: str, notes: Sequence[str]) -> str:
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return f"<p><b>{escape(head)}</b></p><ul>{items}</ul>\n" if items else ""


_TARGET = (
    "Cost of all rounds up to the first at or above the target, mean over the seeds that reach it. Unless "
    "given, the target is 95 % of the worst final accuracy among algorithms that learn: those that end with "
    "at least half of the best one's."
)


def settings(comparison: Comparison) -> str:
    """What each algorithm has of its own, and what all have."""
    found = {name: _settings(comparison.of(name)) for name in comparison.plan.entries}
    begun = {name: keys for name, keys in found.items() if keys}
    if not begun:
        return ""
    common = dict(set.intersection(*(set(keys.items()) for keys in begun.values())))
    own = [(name, _lines({k: v for k, v in keys.items() if k not in common})) for name, keys in begun.items()]
    shared = _lines({key: common[key] for key in next(iter(begun.values())) if key in common})
    return (
        f"<details open><summary>Settings of each</summary>{page.table(own, kind='facts')}</details>\n"
        f"<details><summary>Settings of all</summary><pre>{escape(shared)}</pre></details>\n"
    )


def runs(told: Record) -> str:
    """A row per run, folded."""
    head = (
        "run",
        "state",
        "best accuracy, %",
        "best round",
        "mean of last 5, %",
        "last accuracy, %",
        "sent",
        "wall time, measured",
    )
    rows = [(run["folder"], run["state"], *_figures(run["figures"])) for run in told["runs"]]
    return f"<details><summary>All runs</summary>{page.table(rows, head)}</details>\n"


def _figures(row: Record | None) -> tuple[str, ...]:
    if row is None:
        return ("",) * 6
    accuracies = (row["accuracy_best"], row["accuracy_last5"], row["accuracy_last"])
    best, *later = ["none" if share is None else f"{100 * share:.2f}" for share in accuracies]
    return best, str(row["round_best"]), *later, size(row["bytes_total"]), duration(row["wall_s"])


def _settings(results: Sequence[Result]) -> dict[str, str]:
    """{key: value} of the first run that was begun."""
    told = next((one.recorded for one in results if one.recorded is not None), None)
    return _flat(tomllib.loads(told.config_text)) if told is not None else {}


def _flat(tree: Record, prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = json.dumps(value, ensure_ascii=False)
    return flat


def _lines(keys: dict[str, str]) -> str:
    return "\n".join(f"{key} = {value}" for key, value in keys.items())
