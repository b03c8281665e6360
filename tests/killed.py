"""Runs that kill themselves: for tests of what survives. Importable, since other processes run it."""

import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path

CALLS = ("fsync", "rename", "replace", "ftruncate", "mkdir")  # of os: every step on the way to the disk


def count_events(function: Callable[[], object], kill_at: int | None) -> int:
    """Run `function`; events are calls of CALLS and of local training. Before number `kill_at`: SIGKILL."""
    from fl.train.program import ProgramTurn

    events = 0

    def counted(real):
        def call(*arguments, **options):
            nonlocal events
            if events == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            events += 1
            return real(*arguments, **options)

        return call

    for name in CALLS:
        setattr(os, name, counted(getattr(os, name)))
    ProgramTurn._train = counted(ProgramTurn._train)
    function()
    return events


def run(config_file: str, path: str, kill_at: int | None, told: "multiprocessing.Queue[int] | None") -> None:
    """Start the run, or go on with it where there is one."""
    from fl import config
    from fl.run import runs

    def work() -> None:
        options = runs.Options(workers=1)  # so that events have an order
        if (Path(path) / "config.toml").exists():
            runs.resume(path, options)
        else:
            runs.start(config.load(config_file), path, options)

    events = count_events(work, kill_at)
    if told is not None:
        told.put(events)


def compare(config_file: str, path: str, kill_at: int | None, told: "multiprocessing.Queue[int]") -> None:
    """The same for a comparison of two, one seed each."""
    from rich.console import Console

    from fl.cli import compare as compare_command

    place = {"resume": Path(path)} if (Path(path) / "plan.json").exists() else {"out": Path(path)}
    new = {"source": config_file, "algorithms": "da_dpfl,b=da_dpfl", "changes": ["b:da_dpfl.max_wait=0"]}
    given = compare_command.Arguments(**place, **(new if "out" in place else {}), workers=1)
    told.put(count_events(lambda: compare_command.run(Console(quiet=True), given), kill_at))


def in_a_process(config_file: Path, path: Path, kill_at: int | None = None, target=run) -> int:
    """The number of events of a run (or what `target` does) that ends; -1 of one that was killed."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["fl.run.runs", "torch._dynamo"])
    told = context.Queue()
    process = context.Process(target=target, args=(str(config_file), str(path), kill_at, told))
    process.start()
    process.join(120)
    if process.exitcode == -signal.SIGKILL:
        return -1
    assert process.exitcode == 0, process.exitcode
    return told.get(timeout=30)
