"""One run, from some round to the last: rounds, lines, checkpoints. Once for all algorithms.

After every round its line is on disk, then (as often as `run.checkpoint_every` says) the state, with a mark
of how far the growing files go; resuming cuts them there. So a process may be killed at any moment, and the
resumed run writes what the other would have written. The files: fl/run/rundir.py.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import torch

from fl import algorithms
from fl.algorithms.base import Env
from fl.config import Config
from fl.errors import CheckpointError, Diverged
from fl.run import (
    executor,
    history,
    interrupts,
    metering,
    metrics,
    present,
    recorded,
    restore,
    stopping,
    traces,
)
from fl.run.book import Book, Memory
from fl.run.checkpoint import Head
from fl.run.events import Listener
from fl.run.executor import Pool
from fl.run.growing import NOTHING, Mark
from fl.run.history import History
from fl.run.metering import Metering
from fl.run.meters import Meter, usual
from fl.run.meters.energy import How
from fl.run.names import GROWING
from fl.train.setting import Setting
from fl.world import devices, presence
from fl.world.topology import Topology
from sparse_engine.hardware import cores

Summary = dict[str, Any]

# A state of this many bytes is saved after every round: that takes less than a second. A larger one (100
# AlexNets are 5 GB) is saved when SHARE times as long has passed as saving took: a twentieth of the time.
SMALL = 1 << 26
SHARE = 20


@dataclass(frozen=True)
class Options:
    """How to run, which changes no result."""

    workers: int | None = None  # default: one per core
    listener: Listener = Listener()
    overwrite: bool = False  # a new run may remove an earlier one in its directory
    allow_mixed: bool = False  # a run may go on where its numbers come out otherwise (fl/run/history.py)
    meters: Sequence[Meter] = field(default_factory=usual)  # what is measured of every round
    executor: str = executor.LOCAL  # where clients train: one of executor.names()
    energy: How | None = None  # joules of every round are measured too, and how
    address: str | None = None  # of a cluster, for the executor "ray"; None: this machine is one

    @property
    def num_workers(self) -> int:
        return self.workers or cores()


class After(NamedTuple):
    """Where a run stands: the last round that is done, how far the growing files go, and the state."""

    round: int
    marks: dict[str, Mark]
    history: History
    state: Any


BEGIN = After(-1, dict.fromkeys(GROWING, NOTHING), (), None)


class Run:
    """One run, as far as it got. `lines` goes on with it; the summary is of all rounds."""

    after: After  # replaced as a whole: an interrupt finds the old or the new one
    _meters: Metering  # while rounds run

    def __init__(self, cfg: Config, setting: Setting, topology: Topology, options: Options) -> None:
        self.cfg, self.setting, self.topology, self.options = cfg, setting, topology, options
        self.after, self.book = BEGIN, Memory()  # type: After, Book
        self.algorithm = algorithms.find(cfg.algorithm)
        self.presence = presence.make(cfg.presence, cfg.num_clients, cfg.seed)
        devices.draw(cfg.devices, cfg.num_clients)  # a trace that is wrong is told now
        self._make_pool = executor.find(options.executor, address=options.address, workers=options.workers)
        self._saved_bytes, self._saved_s, self._saved_at = 0, 0.0, 0.0

    @property
    def path(self) -> str:
        """How clients are trained, and why so."""
        return str(self.setting.path)

    def restored(self, folder: Path, head: Head) -> After:
        """Where the run stood after the round of a checkpoint. StoreError: that does not fit the run."""
        layout = self.setting.initial.layout
        state = restore.state_of(folder, head, self.algorithm, self.cfg, layout)
        return After(head.round, head.marks, head.history, state)

    def lines(self, book: Book) -> Iterator[metrics.Record]:
        """All rounds that are left, a line each, written to `book`. Between two rounds, and when the iterator
        is closed, everything is as it was before, and `lines` may be asked for the rest."""
        self.book, listener = book, self.options.listener
        self._watch = stopping.Watch(self.cfg, book.rounds() if self.after.round >= 0 else ())
        if self.after.round + 1 == self.cfg.num_rounds or self._watch.stop:
            return
        numerics = history.same_numerics(
            self.after.history, self.path, self.options.allow_mixed, listener.note
        )
        with metering.opened(self.options.meters, self.options.energy, listener) as self._meters:
            with _computing(numerics):
                self._told_where(self._meters.facts)
            try:
                self._meters.begin()
                with closing(self._make_pool(self.setting, self.options.num_workers, listener)) as pool:
                    yield from self._rounds(self._env(pool), pool, numerics)
                self._told_more(self._meters.end())
            finally:
                listener.run_stopped()

    def finish(self) -> Summary:
        """The summary of all rounds, written to the book."""
        return self.book.finish(self.summary(self.book.rounds()))

    def summary(self, rounds: list[metrics.Record]) -> Summary:
        """Return the summary of these rounds."""
        last = self.after.history[-1]
        path = history.path_of(self.after.history)
        summary = recorded.summarised(self.cfg, rounds, path, last.workers, last.environment)
        return summary | {"mixed": history.mixed(self.after.history)} | dict.fromkeys(recorded.TWINS)

    def _told_where(self, facts: dict[str, str]) -> None:
        workers = min(self.options.num_workers, self.cfg.num_clients)
        read = traces.facts(self.cfg)
        traces.compare(self.after.history, read, self.options.listener.note)
        part = history.now(self.after.round + 1, workers, self.path, facts | read)
        self.after = self.after._replace(history=history.continued(self.after.history, part))
        self.book.parts(self.after.history)
        self.options.listener.run_started(self.cfg, self.book.path, self.after.round + 1)
        self.options.listener.path_chosen(self.path)

    def _told_more(self, facts: dict[str, str]) -> None:
        """What is known of the machine only after the last round."""
        if facts:
            self.after = self.after._replace(history=history.extended(self.after.history, facts))
            self.book.parts(self.after.history)

    def _env(self, pool: Pool) -> Env:
        cfg = self.cfg
        return Env(
            config=cfg.settings,
            num_clients=cfg.num_clients,
            num_rounds=cfg.num_rounds,
            seed=cfg.seed,
            initial=self.setting.initial,
            topology=self.topology,
            executor=pool,
            devices=cfg.devices,
            training=cfg.training,
            costs=self.setting.costs,
            messages=cfg.messages,
        )

    def _rounds(self, env: Env, pool: Pool, numerics: history.Numerics) -> Iterator[metrics.Record]:
        saved = self.after.round
        try:
            with _computing(numerics):
                pool.warm_up(self.cfg.num_clients)
                if saved < 0:
                    self._first(env)
            for t in range(saved + 1, self.cfg.num_rounds):
                with _computing(numerics):
                    line = self._round(t, env)
                stop = self._watch.see(line)
                if stop or self._due(t):
                    self._save()
                    saved = t
                if stop:
                    self.options.listener.note(f"stopped early, after round {stop.round}: {stop.why}")
                yield line
                if stop:
                    return
        except BaseException as stopped:
            if self.after.round > saved and not isinstance(stopped, CheckpointError):
                self._save()
            raise

    def _first(self, env: Env) -> None:
        """The state before round 0."""
        self.after = self.after._replace(state=self.algorithm.init(env))
        restore.check(self.after.state, self.algorithm, self.cfg.num_clients)

    def _round(self, t: int, env: Env) -> metrics.Record:
        listener, env = self.options.listener, replace(env, attendance=self.presence.at(t))
        listener.round_started(t)
        self._told_who(t, env)
        self._meters.start()
        result = present.checked(self.algorithm.run_round(self.after.state, t, env), env.attendance)
        readings = self._meters.stop()
        modelled = metrics.modelled(result, env.clock(t))
        told = present.only(result, env.attendance)
        record = metrics.round_record(t, told, modelled, env.local(t).lr, readings, self.cfg.algorithm)
        record |= present.facts(env.attendance)
        clients = [*metrics.client_records(t, result, modelled)] if self.cfg.run.record_clients else []
        for line in (record, *clients):
            _check_finite(line)
        with interrupts.held():  # or there would be a line without its state
            self.book.append(record, clients)
            self.after = After(t, self.book.marks(), self.after.history, result.state)
        listener.round_finished(record)
        return record

    def _told_who(self, t: int, env: Env) -> None:
        there = env.attendance.there
        if there is not None:
            self.options.listener.clients_present(int(there.sum()))
            if not there.any():
                self.options.listener.note(f"round {t} is empty: no client is there")

    def _due(self, t: int) -> bool:
        """Whether to save the state after round t."""
        every = self.cfg.run.checkpoint_every
        if t + 1 == self.cfg.num_rounds:
            return True
        if every is not None:
            return (t + 1) % every == 0
        return self._saved_bytes <= SMALL or perf_counter() - self._saved_at >= SHARE * self._saved_s

    def _save(self) -> None:
        began = perf_counter()
        self._saved_bytes = self.book.save(self.cfg, *self.after)
        self._saved_at = perf_counter()
        self._saved_s = self._saved_at - began


@contextmanager
def _computing(numerics: history.Numerics) -> Iterator[None]:
    """Compute rounds with torch on one thread, since its results may depend on the number of threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with numerics():
            yield
    finally:
        torch.set_num_threads(threads)


def _check_finite(line: metrics.Record) -> None:
    """Diverged: a figure of a round is no number that a line can hold."""
    for key, value in line.items():
        if isinstance(value, float) and not math.isfinite(value):
            of = f" of client {line['client']}" if "client" in line else ""
            raise Diverged(
                f"expected a finite {key}{of} in round {line['round']}, got {value}: lower training.lr, "
                "clip with max_norm, or look at [devices] where it is a modelled one"
            )
