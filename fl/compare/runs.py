"""Runs algorithms x seeds (fl/compare/plan.py), each in a run directory (fl/run/rundir.py) of its own:

    plan.json               what runs
    NAME-seed-0/ ...        directories of runs; failed.txt in one: why it ended, in its first line
    comparison.json, .md, .csv, .tex, report.html     written by fl/compare/report.py

Finished runs are not run again, one that was interrupted goes on. One that cannot go on (diverged, refused by
its algorithm, damaged, any error in it) leaves the others alone. A full disk or missing data ends everything.
"""

import traceback
from dataclasses import replace
from pathlib import Path

from fl.compare import check
from fl.compare.events import Display
from fl.compare.plan import Plan, Run, from_json
from fl.errors import ConfigError, Expected, Interrupted, MixedError, RunDirError, UntrustedError
from fl.run import files, runs, setup
from fl.run.files import write_atomic
from fl.run.rundir import PLAN, SUMMARY, RunDir
from fl.run.runs import Options

FAILED = "failed.txt"


def start(plan: Plan, path: Path, options: Options, display: Display) -> None:
    """A new comparison in `path`."""
    setup.prepare(plan.base)  # data may be missing: then nothing is written
    with RunDir.create(path, options.overwrite) as directory:
        directory.write_json(PLAN, plan.to_json())
        _finish(plan, path, options, display)


def resume(plan: Plan, path: Path, options: Options, display: Display) -> None:
    """What the comparison in `path` lacks; `plan` is its own, or an extended one."""
    with RunDir.open(path, PLAN) as directory:
        directory.write_json(PLAN, plan.to_json())
        _finish(plan, path, options, display)


def read_plan(path: Path) -> Plan:
    """Return the plan of a comparison's directory."""
    if not is_comparison(path):
        raise RunDirError(f"expected the directory of a comparison, got {path}, which has no {PLAN}")
    try:
        return from_json(files.read_json(path, PLAN))
    except ConfigError as wrong:
        raise RunDirError(f"{path / PLAN}: {wrong}") from wrong


def is_comparison(path: Path) -> bool:
    return files.exists(path, PLAN)


def why_failed(folder: Path) -> str | None:
    """Why the run in `folder` ended, in a sentence; None: it did not fail."""
    if not files.exists(folder, FAILED):
        return None
    try:
        return files.read_text(folder, FAILED).partition("\n")[0]
    except (RunDirError, OSError) as wrong:
        return f"{FAILED} says nothing: {wrong}"


def _finish(plan: Plan, path: Path, options: Options, display: Display) -> None:
    options = replace(options, listener=display, overwrite=False)  # of the comparison, not of its runs
    left = [run for run in plan.runs if not (run.below(path) / SUMMARY).exists()]
    ended = {run: check.examined(plan, run, run.below(path))[1] for run in plan.runs if run not in left}
    damaged = {run: damage for run, damage in ended.items() if damage is not None}
    display.comparison_started(plan, path, left, damaged)
    try:
        for run in left:
            _one(plan, run, run.below(path), options, display)
    finally:
        display.comparison_stopped()


def _one(plan: Plan, run: Run, folder: Path, options: Options, display: Display) -> None:
    (folder / FAILED).unlink(missing_ok=True)
    begun, damage = check.examined(plan, run, folder)
    if damage is not None:
        display.run_failed(run, f"damaged: {damage}")
        return
    try:
        cfg = plan.config(run)
        summary = runs.start(cfg, folder, options) if begun is None else runs.resume(folder, options)
        display.run_finished(run, summary)
    except (Interrupted, MixedError, UntrustedError, OSError):
        raise  # the user's choice, or one that the user has to make for all runs
    except Exception as wrong:
        if isinstance(wrong, RunDirError) and isinstance(wrong.__cause__, OSError):
            raise  # the disk, or another process: the other runs would meet it too
        _failed(folder, wrong)
        display.run_failed(run, why_failed(folder) or "")


def _failed(folder: Path, wrong: Exception) -> None:
    known = isinstance(wrong, Expected)  # its message needs no traceback
    text = "; ".join(str(wrong).splitlines()) if known else f"{type(wrong).__name__}: {wrong}"
    trace = "" if known else "".join(traceback.format_exception(wrong))
    folder.mkdir(exist_ok=True)
    write_atomic(folder / FAILED, f"{text}\n{trace}".encode())
