"""`sparsefl compare`: from arguments to a comparison, and from what goes wrong to a sentence."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from shlex import quote

from rich.console import Console

from fl.cli import compare_display
from fl.cli.exits import guarded
from fl.compare import plan as compare_plan
from fl.compare import report as compare_report
from fl.compare import runs
from fl.compare import table as compare_table
from fl.compare.plan import Plan
from fl.config import code
from fl.errors import ConfigError
from fl.report import picture
from fl.run import executor
from fl.run.meters.energy import How
from fl.run.rundir import REPORT
from fl.run.runs import Options
from fl.train import places


@dataclass(frozen=True)
class Arguments:
    """What the command line said."""

    source: str | None = None
    algorithms: str | None = None
    seeds: str | None = None
    changes: Sequence[str] = ()
    out: Path | None = None
    resume: Path | None = None
    workers: int | None = None
    target: float | None = None
    plot: Path | None = None
    table: str | None = None
    grid: Sequence[str] = ()
    overwrite: bool = False
    allow_mixed: bool = False
    code: Sequence[str] = ()
    trust: bool = False
    energy: bool = False
    device: str = "cpu"
    executor: str = "local"
    address: str | None = None

    def check(self) -> None:
        if (self.source is None) == (self.resume is None):
            raise ConfigError("expected either a configuration (a preset or a file) or --resume DIR")
        if self.resume is not None and self.out is not None:
            raise ConfigError("expected --resume without --out: the comparison goes on where it was started")
        if self.resume is not None and self.overwrite:
            raise ConfigError("expected --overwrite of a new comparison, got it with --resume")
        if self.resume is None and self.allow_mixed:
            raise ConfigError("expected --allow-mixed with --resume: a new comparison is of one kind")
        if self.source is not None and self.algorithms is None and not self.grid:
            raise ConfigError(
                "expected --algorithms, as a,b,c or all, or --grid KEY=VALUE,VALUE, got neither"
            )
        executor.find(self.executor, "--executor", self.address)
        if self.workers is not None and self.workers < 1:
            raise ConfigError(f"--workers: expected at least 1, got {self.workers}")
        places.find(self.device, "--device")
        if self.target is not None and not 0 < self.target <= 1:
            raise ConfigError(f"--target: expected an accuracy above 0, up to 1, got {self.target:g}")
        if self.table is not None and self.table not in compare_report.TABLES:
            known = list(compare_report.TABLES)
            raise ConfigError(f"--table: expected one of {known}, got {self.table!r}")
        if self.plot is not None:
            _check_plot(self.plot)


def run(console: Console, given: Arguments) -> int:
    """Run or resume, print the table, write the report, return the exit code: 0 if every run has finished.

    With --table the table alone goes to standard output; `console` should be one of standard error.
    """
    path = given.resume

    def work() -> int:
        nonlocal path
        given.check()
        code.allow_named(given.code, given.trust)
        display = compare_display.for_console(console)
        how = How() if given.energy else None
        options = Options(
            given.workers,
            display,
            given.overwrite,
            given.allow_mixed,
            energy=how,
            device=given.device,
            executor=given.executor,
            address=given.address,
        )
        if given.resume is None:
            plan = _planned(given)
            for note in plan.notes:
                display.note(note)
            path = given.out or Path("runs") / f"compare-{plan.base.name}-{datetime.now():%Y%m%d-%H%M%S}"
            runs.start(plan, path, options, display)
        else:
            path = given.resume
            runs.resume(_extended(runs.read_plan(path), given), path, options, display)
        return _show(console, path, given.plot, given.table)

    def again() -> str | None:
        more = " --energy" if given.energy else ""
        more += executor.told(given.executor, given.address)
        return None if path is None else f"sparsefl compare --resume {quote(str(path))}{more}"

    return guarded(console, work, again)


def write_report(console: Console, path: Path) -> int:
    """Write the report of the comparison in `path`, name damaged runs, and return the exit code: 1 if any."""
    comparison = compare_report.write(path)
    for note in compare_table.notes(comparison.to_json(), "damaged"):
        console.print(note, style="red", markup=False, highlight=False, soft_wrap=True)
    console.print(f"the report is {path / REPORT}", markup=False, highlight=False, soft_wrap=True)
    return 1 if comparison.damaged else 0


def _planned(given: Arguments) -> Plan:
    assert given.source is not None  # check() saw to it
    names, changes = given.algorithms, given.changes
    return compare_plan.make(given.source, names, given.seeds, changes, given.target, given.grid)


def _extended(plan: Plan, given: Arguments) -> Plan:
    plan = compare_plan.extend(plan, given.algorithms, given.seeds, given.changes, given.grid)
    return plan if given.target is None else replace(plan, target=given.target)


def _show(console: Console, path: Path, plot: Path | None, table: str | None) -> int:
    comparison = compare_report.write(path)
    told = comparison.to_json()
    if table is None:
        compare_table.show(console, told)
    else:
        _, made = compare_report.TABLES[table]
        sys.stdout.write(made(told))
    if plot is not None:
        compare_report.draw(plot, comparison)
    for what, where in (("comparison", path), ("report", path / REPORT), ("plot", plot)):
        if where is not None:
            console.print(f"the {what} is {where}", markup=False, highlight=False, soft_wrap=True)
    return 0 if comparison.complete else 1


def _check_plot(path: Path) -> None:
    try:
        picture.check(path)
    except ValueError as wrong:
        raise ConfigError(f"--plot: {wrong}") from wrong
