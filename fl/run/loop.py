"""One run, from some round to the last: rounds, lines, checkpoints. Once for all algorithms.

After every round its line is on disk, then (as often as `run.checkpoint_every` says) the state, with a mark
of how far the growing files go; resuming cuts them there. So a process may be killed at any moment, and the
resumed run writes what the other would have written. The files: fl/run/rundir.py.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

from fl import algorithms
from fl.algorithms.base import Env, Round
from fl.config import Config
from fl.errors import CheckpointError, ConfigError
from fl.run import (
    checkpoint,
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
from fl.run.computing import check_finite, computing
from fl.run.events import Listener
from fl.run.executor import Pool
from fl.run.growing import NOTHING, Mark
from fl.run.history import History
from fl.run.metering import Metering
from fl.run.meters import Meter, usual
from fl.run.meters.energy import How
from fl.run.names import CHECKPOINT, GROWING
from fl.run.populations import Populations
from fl.train import places
from fl.train.setting import Setting
from fl.units import counted
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
    device: str = places.CPU  # where workers compute: as sparse_engine.program.gpu.cards reads it
    address: str | None = None  # of a cluster, for the executor "ray"; None: this machine is one

    @property
    def num_workers(self) -> int:
        return self.workers or cores()

    def check_device(self) -> None:
        """ConfigError where a number of workers is asked for that nobody would have, or GPUs of a cluster."""
        if self.executor == executor.RAY and self.device != places.CPU:
            raise ConfigError(f"device: expected cpu with the executor ray, got {self.device}")
        devices = {part.strip() for part in self.device.split(",")}
        if self.workers is not None and places.CPU not in devices:
            raise ConfigError(
                f"workers: expected none with device {self.device}, since a GPU has one worker; "
                f"{self.device},cpu adds so many on the CPU, got {self.workers}"
            )


class After(NamedTuple):
    """Where a run stands: the last round that is done, how far the growing files go, and the state."""

    round: int
    marks: dict[str, Mark]
    history: History
    state: Any


SPENT = object()  # a state whose models a round was dropping when it failed
BEGIN = After(-1, dict.fromkeys(GROWING, NOTHING), (), None)


class Run:
    """One run, as far as it got. `lines` goes on with it; the summary is of all rounds."""

    _meters: Metering  # while rounds run

    def __init__(self, cfg: Config, setting: Setting, topology: Topology, options: Options) -> None:
        self.cfg, self.setting, self.topology, self.options = cfg, setting, topology, options
        self._after, self.book = BEGIN, Memory()  # type: After, Book
        self.algorithm = algorithms.find(cfg.algorithm)
        self.presence = presence.make(cfg.presence, cfg.num_clients, cfg.seed)
        devices.draw(cfg.devices, cfg.num_clients)  # a trace that is wrong is told now
        self._make_pool = executor.find(options.executor, address=options.address, workers=options.workers)
        self._saved_bytes, self._saved_s, self._saved_at = 0, 0.0, perf_counter()
        self.populations = Populations(cfg, setting, elsewhere=options.executor == executor.RAY)

    @property
    def after(self) -> After:
        """Where it stands. Replaced as a whole: an interrupt finds the old or the new one."""
        if self._after.state is SPENT:
            self._after = self._again()
        return self._after

    @after.setter
    def after(self, after: After) -> None:
        self._after = after

    @property
    def path(self) -> str:
        """How clients are trained, and why so."""
        return str(self.setting.path)

    def restored(self, folder: Path, head: Head) -> After:
        """Where the run stood after the round of a checkpoint. StoreError: that does not fit the run."""
        layout = self.setting.initial.layout
        store = self.populations.store(folder.parent)
        state = restore.state_of(folder, head, self.algorithm, self.cfg, layout, store)
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
            with computing(numerics):
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
        there = places.of_workers(self.setting.places, self.options.num_workers)
        workers = min(len(there), self.cfg.num_clients)
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
            store=self.populations.store(self.book.path),
        )

    def _rounds(self, env: Env, pool: Pool, numerics: history.Numerics) -> Iterator[metrics.Record]:
        saved = self.after.round
        try:
            with computing(numerics):
                pool.warm_up(self.cfg.num_clients)
                if saved < 0:
                    self._first(env)
            for t in range(saved + 1, self.cfg.num_rounds):
                with computing(numerics):
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
            spent = self._after.state is SPENT
            if self._after.round > saved and not spent and not isinstance(stopped, CheckpointError):
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
        result = present.checked(self._result(t, env), env.attendance)
        readings = self._meters.stop()
        modelled = metrics.modelled(result, env.clock(t))
        told = present.only(result, env.attendance)
        record = metrics.round_record(t, told, modelled, env.local(t).lr, readings, self.cfg.algorithm)
        record |= present.facts(env.attendance)
        clients = [*metrics.client_records(t, result, modelled)] if self.cfg.run.record_clients else []
        for line in (record, *clients):
            check_finite(line)
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

    def _result(self, t: int, env: Env) -> Round:
        """Round t. Of a large population, models go with their last reader."""
        state = self.after.state
        if not self.populations.may_spend(t, self.book):
            return self.algorithm.run_round(state, t, env)
        try:
            return self.algorithm.run_round(state, t, replace(env, spend=True))
        except BaseException:
            self._after = self._after._replace(state=SPENT)
            raise

    def _again(self) -> After:
        """Where the run stands after a round that failed while it dropped models: as after kill -9."""
        path = self.book.path
        if path is None or not checkpoint.rounds(path / CHECKPOINT):
            after = BEGIN
        else:
            folder = path / CHECKPOINT
            after, problems = checkpoint.newest(folder, lambda head: self.restored(folder, head))
            for problem in problems:
                self.options.listener.note(f"damaged checkpoint left aside: {problem}")
        self.book.cut(after.marks)
        if after.round < self._after.round:
            lost = counted(self._after.round - after.round, "round")
            self.options.listener.note(f"going back to the checkpoint of round {after.round}: {lost} again")
        return after

    def _due(self, t: int) -> bool:
        """Whether to save the state after round t."""
        every = self.cfg.run.checkpoint_every
        if t + 1 == self.cfg.num_rounds:
            return True
        if every is not None:
            return (t + 1) % every == 0
        if (seconds := self.cfg.run.checkpoint_seconds) is not None:
            return perf_counter() - self._saved_at >= seconds
        return self._saved_bytes <= SMALL or perf_counter() - self._saved_at >= SHARE * self._saved_s

    def _save(self) -> None:
        began = perf_counter()
        self._saved_bytes = self.book.save(self.cfg, *self.after)
        self._saved_at = perf_counter()
        self._saved_s = self._saved_at - began
