"""What every benchmark does around its rows: say how it goes on, show the tables, save the result."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from fl.errors import Expected
from fl.units import quantity
from sparsefl.bench import report
from sparsefl.bench.meta import meta

Row = dict[str, Any]


def shown(rows: Iterator[Row], told: Callable[[Row], str], console: Console | None = None) -> Iterator[Row]:
    """The rows as they come, told on the error stream: in a live line on a terminal, in lines elsewhere."""
    console = console or Console(stderr=True)
    if not console.is_terminal:
        for row in rows:
            console.print(told(row), markup=False, highlight=False, soft_wrap=True)
            yield row
        return
    with Live(console=console, auto_refresh=False, transient=True) as live:  # no thread beside what is timed
        for row in rows:
            live.update(Text(told(row), overflow="ellipsis", no_wrap=True), refresh=True)
            yield row


def seconds(milliseconds: float) -> str:
    """With a unit, three digits: 12.3 ms."""
    return quantity(milliseconds / 1e3, "s")


def finish(
    rows: list[Row],
    columns: dict[str, str],
    summarise: Callable[[list[Row]], dict],
    path: Path | None,
    *,
    threads: int = 1,
    repeats: int | dict[str, int] = 1,
    title: str = "times_ours: how many times our time",
    also: dict[str, Any] | None = None,
    append: bool = False,
    **more: Any,
) -> int:
    """Show rows and tables, save the result in `path`; `also`: more of the result, `more`: of its meta.

    append: what `path` holds stays beside it, if it was measured in the same way.
    """
    console = report.console()
    report.show_rows(rows, columns, title, console)
    now = meta(threads, repeats=repeats, **more)
    if append and path and path.exists():
        rows = [*before(json.loads(path.read_text()), now, path), *rows]
    result = {"meta": now, "rows": rows, "summary": summarise(rows)} | (also or {})
    console.print(report.markdown(result), markup=False, highlight=False, soft_wrap=True)
    if path:
        report.save(result, path)
    return 0


def before(result: report.Result, now: dict[str, Any], path: Path) -> list[Row]:
    """The rows of an earlier result; Expected if it was measured on something else, the date aside."""
    then = result["meta"]
    differ = [key for key in {*then, *now} if key != "date" and then.get(key) != now.get(key)]
    if differ:
        raise Expected(
            f"--append: expected {path} to be measured alike, got another {', '.join(sorted(differ))}"
        )
    return result["rows"]


def aot(path: Path | None) -> int:
    """In a process of its own: the compiler and Triton's interpreter exclude one another."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "sparsefl.kernels.aot", "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise Expected(f"expected the Triton kernels to compile, got: {done.stderr.strip()}")
    rows = json.loads(done.stdout)
    columns = {key: "" for key in rows[0]}
    report.show_rows(rows, columns, "Triton kernels compiled ahead of time for sm_89", report.console())
    if path:
        report.save({"meta": meta(1), "rows": rows, "summary": {}}, path)
    return 1 if any(row["spills"] for row in rows) else 0
