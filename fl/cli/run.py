"""`sparsefl run` and `sparsefl report`: from arguments to a run, and from what goes wrong to a sentence."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from shlex import quote

from rich.console import Console

from fl import config
from fl.cli import display
from fl.cli.exits import guarded, say
from fl.config import code
from fl.errors import ConfigError
from fl.report import report
from fl.run import events, executor, loggers, runs
from fl.run.events import Listener
from fl.run.meters.energy import How
from fl.run.runs import Options, Summary
from fl.train import places


@dataclass(frozen=True)
class Arguments:
    """What the command line said."""

    source: str | None = None
    changes: Sequence[str] = ()
    out: Path | None = None
    resume: Path | None = None
    executor: str = "local"
    workers: int | None = None
    baseline: str | None = None
    log: str | None = None
    overwrite: bool = False
    allow_mixed: bool = False
    code: Sequence[str] = ()
    trust: bool = False
    energy: How | None = None
    device: str = "cpu"
    address: str | None = None

    def check(self) -> None:
        if (self.source is None) == (self.resume is None):
            raise ConfigError("expected either a configuration (a preset or a file) or --resume DIR")
        if self.resume is not None and (self.changes or self.out is not None):
            raise ConfigError(
                "expected --resume alone: the run goes on as it was started, where it was started"
            )
        if self.resume is not None and self.overwrite:
            raise ConfigError(
                "expected --overwrite of a new run, got it with --resume, which removes nothing"
            )
        if self.resume is None and self.allow_mixed:
            raise ConfigError("expected --allow-mixed with --resume: a new run is of one kind")
        executor.find(self.executor, "--executor", self.address)
        if self.workers is not None and self.workers < 1:
            raise ConfigError(f"--workers: expected at least 1, got {self.workers}")
        places.find(self.device, "--device")
        if self.baseline == "dense" and self.device != places.CPU:
            raise ConfigError(
                "--baseline dense: expected --device cpu: its dense run is plain PyTorch there; on a GPU, "
                f"compare with a run of density 1, got {self.device}"
            )
        if self.baseline is not None and self.baseline not in runs.TWINS:
            known = " or ".join(runs.TWINS)
            raise ConfigError(f"--baseline: expected {known}, got {self.baseline!r}")


def run(console: Console, given: Arguments) -> int:
    """Run or resume, print the table, return the exit code."""
    path: Path | None = given.resume

    def work() -> int:
        nonlocal path
        given.check()
        code.allow_named(given.code, given.trust)
        if given.resume is None:
            assert given.source is not None  # check() saw to it
            cfg, notes = config.read(given.source, given.changes)
            if given.baseline is not None:
                runs.twin_of(cfg, given.baseline)  # refused now, not after hours
            path = given.out or Path("runs") / f"{cfg.name}-{datetime.now():%Y%m%d-%H%M%S}"
            summary = runs.start(cfg, path, _options(console, given), notes)
        else:
            path = given.resume
            summary = runs.resume(path, _options(console, given))
        if given.baseline is not None:
            summary = runs.baseline(path, _options(console, given), given.baseline)
        _show(console, summary, path)
        return 0

    def again() -> str | None:
        if path is None:
            return None
        more = f" --baseline {given.baseline}" if given.baseline else ""
        more += " --energy" if given.energy is not None else ""
        more += f" --device {given.device}" if given.device != places.CPU else ""
        more += executor.told(given.executor, given.address)
        return f"sparsefl run --resume {quote(str(path))}{more}"

    return guarded(console, work, again)


def show_report(console: Console, path: Path, named: Sequence[str] = (), trust: bool = False) -> int:
    """Write the report of the run or comparison in `path`, return the exit code. `named` code may be
    imported for it; `trust`: all."""
    from fl.cli import compare as compare_command  # which needs this module
    from fl.compare import runs as compare

    def work() -> int:
        code.allow_named(named, trust)
        if compare.is_comparison(path):
            return compare_command.write_report(console, path)
        say(console, f"the report is {report.write(path)}")
        return 0

    return guarded(console, work)


def _options(console: Console, given: Arguments) -> Options:
    listeners: list[Listener] = [display.for_console(console)]
    if given.log is not None:
        listeners += loggers.made(given.log)
    return Options(
        given.workers,
        events.Several(listeners),
        given.overwrite,
        given.allow_mixed,
        executor=given.executor,
        energy=given.energy,
        address=given.address,
        device=given.device,
    )


def _show(console: Console, summary: Summary, path: Path) -> None:
    written = report.write(path)  # first: nothing that is printed can keep it from being written
    console.print(display.summary_table(summary))
    say(console, f"the run is in {path}")
    say(console, f"the report is {written}")
