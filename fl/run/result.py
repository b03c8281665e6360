"""What came out of a run, in memory or in its directory: `Result`; `load` reads a directory."""

import copy
from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import nn

import sparse_engine as se
from fl import config
from fl.config import Config
from fl.config.code import allow_named
from fl.errors import ConfigError, RunDirError
from fl.run import files, models, recorded, setup, stopping
from fl.run.book import Memory
from fl.run.frame import Frame, Record
from fl.run.loop import After, Run
from fl.run.models import Trained
from fl.run.names import CLIENTS, METRICS, REPORT
from fl.run.own import NOTHING, Own
from fl.run.recorded import Recorded
from fl.units import counted


class Result:
    """What came out of a run, finished or not.

    config      its configuration
    metrics     a Frame with a line per round
    clients     a Frame with a line per round and client that trained in it
    summary     what summary.json holds, of the rounds so far; empty before the first
    path        the directory of the run; None: it has none
    model(k)    client k's model, an se.Model;      network(k)   as an ordinary torch network
    report()    writes report.html

    >>> import fl, torch
    >>> result = fl.run("demo", set={"num_rounds": 1, "training.epochs": 1}, workers=1)
    >>> len(result.clients), result.summary["algorithm"], result.network(0)(torch.zeros(1, 1, 8, 8)).shape
    (12, 'da_dpfl', torch.Size([1, 10]))
    """

    def __init__(
        self,
        *,
        path: Path | None,
        recorded: Callable[[], Recorded],
        clients: Callable[[], list[Record]],
        trained: Callable[[], Trained],
    ) -> None:
        self.path, self._read, self._read_clients, self._read_models = path, recorded, clients, trained

    @classmethod
    def of_directory(cls, path: Path, own: Own = NOTHING, loop: Run | None = None) -> "Result":
        """Return the result of a run directory; with `loop`, the models are those in memory."""
        return cls(
            path=path,
            recorded=lambda: recorded.read(path),
            clients=lambda: [*files.each_line(path, CLIENTS)] if files.exists(path, CLIENTS) else [],
            trained=lambda: models.read(path, own) if loop is None else _trained(loop, loop.after),
        )

    @classmethod
    def of_memory(cls, book: Memory, loop: Run) -> "Result":
        """Return the result of a run without a directory, as far as it got."""
        rounds, clients = ([*book.lines[name]] for name in (METRICS, CLIENTS))
        after, setting, cfg = loop.after, loop.setting, loop.cfg
        summary = loop.summary(rounds) if rounds else None
        found = recorded.Recorded(
            cfg,
            config.dumps(cfg),
            rounds,
            *recorded.by_round(clients),
            setup.shares(setting),
            summary,
            len(rounds) == stopping.length(cfg, rounds),
            after.history,
        )
        return cls(
            path=None,
            recorded=lambda: found,
            clients=lambda: clients,
            trained=lambda: _trained(loop, after),
        )

    def checked(self) -> "Result":
        """Itself, after its files were read: whatever is wrong with them is said now."""
        _ = self._recorded
        return self

    def __repr__(self) -> str:
        cfg = self.config
        return (
            f"Result({cfg.name}: {cfg.algorithm}, {len(self.metrics)} of {counted(cfg.num_rounds, 'round')})"
        )

    @property
    def config(self) -> Config:
        return self._recorded.config

    @property
    def summary(self) -> Record:
        return self._recorded.summary or {}

    @cached_property
    def metrics(self) -> Frame:
        return Frame(self._recorded.rounds)

    @cached_property
    def clients(self) -> Frame:
        return Frame(self._read_clients())

    def model(self, k: int) -> se.Model:
        """Client k's model after the last round: weights and mask, compressed. Which model that is for each
        algorithm, fl/run/models.py says."""
        return self._trained.client(k)

    def network(self, k: int) -> nn.Module:
        """Client k's model as an ordinary torch network in evaluation mode, zeros where nothing is stored."""
        return self._trained.network(self.model(k))

    def report(self, path: Path | str | None = None) -> Path:
        """Write the page of the run to `path` (default: report.html in its directory), and say where."""
        from fl.report import report  # which is made from run directories, and so imports this package

        if path is None and self.path is None:
            raise ConfigError("expected a path for the report of a run without a directory, got none")
        return report.write_page(self._recorded, Path(path) if path else Path(self.path or "") / REPORT)

    @cached_property
    def _recorded(self) -> Recorded:
        return self._read()

    @cached_property
    def _trained(self) -> Trained:
        return self._read_models()


def load(
    path: Path | str,
    *,
    network: Any = None,
    data: Any = None,
    partition: Any = None,
    code: Iterable[str] = (),
) -> Result:
    """`fl.load`: what came out of the run in a directory, finished or not.

    path        the directory
    network     for models of a run that was started from Python with a network of one's own: that one
    data, partition     likewise
    code        what may be imported of the code that the directory names, as --code of the command line:
                ["nets.py", "mine.py"]

    >>> import fl, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     result = fl.run("demo", set={"num_rounds": 1, "training.epochs": 1}, out=folder)
    ...     fl.load(folder).metrics == result.metrics, round(fl.load(folder).model(3).density, 3)
    (True, 0.5)
    """
    if not Path(path).is_dir():
        raise RunDirError(f"expected the directory of a run, got {path}, which is no directory")
    allow_named([code] if isinstance(code, str) else code, everything=False)
    return Result.of_directory(Path(path), Own(network=network, data=data, partition=partition)).checked()


def _trained(loop: Run, after: After) -> Trained:
    if after.round < 0:
        raise RunDirError("expected a finished round before there are models, got none")
    return Trained(
        config=loop.cfg,
        round=after.round,
        data=loop.setting.data,
        template=copy.deepcopy(loop.setting.network),
        algorithm=loop.algorithm,
        state=after.state,
    )
