"""One run, from some round to the last: rounds, lines, checkpoints. Once for all algorithms.

After every round its line is on disk, then (as often as `run.checkpoint_every` says) the state, with a mark
of how far the growing files go; resuming cuts them there. So a process may be killed at any moment, and the
resumed run writes what the other would have written. The files: fl/run/rundir.py.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, NamedTuple

import torch

from fl import algorithms, config
from fl.algorithms.base import Env
from fl.config import Config
from fl.errors import CheckpointError, Diverged, Interrupted, RunDirError
from fl.run import checkpoint, history, metrics, recorded, restore
from fl.run.checkpoint import Head
from fl.run.events import Listener
from fl.run.executor import Local
from fl.run.growing import NOTHING, Mark
from fl.run.history import History
from fl.run.meters import Meter, usual
from fl.run.meters.base import Readings
from fl.run.names import CHECKPOINT, CLIENTS, GROWING, HISTORY, METRICS, SUMMARY
from fl.run.rundir import RunDir
from fl.train.worker import Setting, learning_rate
from fl.world.devices import DeviceModel
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
    """One run in its directory. `rounds_left` trains; the summary is of all rounds."""

    after: After  # replaced as a whole: an interrupt finds the old or the new one

    def __init__(self, cfg: Config, setting: Setting, topology: Topology, run: RunDir, options: Options):
        self.cfg, self.setting, self.topology = cfg, setting, topology
        self.run, self.options, self.after = run, options, BEGIN
        self.algorithm = algorithms.registered()[cfg.algorithm]
        self._saved_bytes, self._saved_s, self._saved_at = 0, 0.0, 0.0

    def restored(self, head: Head) -> After:
        """Where the run stood after the round of a checkpoint. StoreError: that does not fit the run."""
        layout, folder = self.setting.initial.layout, self.run / CHECKPOINT
        state = restore.state_of(folder, head, self.algorithm, self.cfg, layout)
        return After(head.round, head.marks, head.history, state)

    def finish(self, after: After) -> Summary:
        """All rounds that are left, and the summary."""
        self.after = after
        listener, threads = self.options.listener, torch.get_num_threads()
        torch.set_num_threads(1)  # torch's results may depend on it
        try:
            if after.round + 1 < self.cfg.num_rounds:
                with history.same_numerics(after.history, self.options.allow_mixed, listener.note):
                    self._all_rounds()
        finally:
            torch.set_num_threads(threads)
        rounds = recorded.rounds_of(self.run.path)
        last = self.after.history[-1]
        summary = recorded.summarised(self.cfg, rounds, last.workers, last.environment)
        summary |= {"mixed": history.mixed(self.after.history)} | recorded.twins(self.run.path)
        self.run.write_json(SUMMARY, summary)
        return summary

    def _all_rounds(self) -> None:
        cfg, listener = self.cfg, self.options.listener
        workers = min(self.options.num_workers, cfg.num_clients)
        part = history.now(self.after.round + 1, workers)
        self.after = self.after._replace(history=history.continued(self.after.history, part))
        self.run.write_json(HISTORY, history.to_json(self.after.history))
        listener.run_started(cfg, self.run.path, self.after.round + 1)
        try:
            with Local(self.setting, self.options.num_workers, listener) as executor:
                executor.warm_up(cfg.num_clients)
                self._rounds(self._env(executor), executor)
        finally:
            listener.run_stopped()

    def _env(self, executor: Local) -> Env:
        cfg, initial = self.cfg, self.setting.initial
        sizes = cfg.num_clients, cfg.num_rounds, cfg.seed
        devices = DeviceModel(**dict(cfg.devices))
        return Env(cfg.settings, *sizes, initial, self.topology, executor, devices, cfg.messages)

    def _rounds(self, env: Env, executor: Local) -> None:
        saved = self.after.round
        try:
            if saved < 0:
                self.after = self.after._replace(state=self.algorithm.init(env))
                restore.check(self.after.state, self.algorithm, self.cfg.num_clients)
                executor.reports()  # of what init did
            for t in range(saved + 1, self.cfg.num_rounds):
                self._round(t, env, executor)
                if self._due(t):
                    self._save()
                    saved = t
        except BaseException as stopped:
            if self.after.round > saved and not isinstance(stopped, CheckpointError):
                self._save()
            if isinstance(stopped, KeyboardInterrupt):
                raise Interrupted from None
            raise

    def _round(self, t: int, env: Env, executor: Local) -> None:
        listener = self.options.listener
        listener.round_started(t)
        for meter in self.options.meters:
            meter.start()
        result = self.algorithm.run_round(self.after.state, t, env)
        readings: Readings = {}
        for meter in reversed(self.options.meters):
            readings = meter.stop() | readings
        reports = executor.reports()
        devices = env.devices.devices(env.num_clients, env.seed, t)
        modelled = metrics.modelled(result, reports, env.devices, devices)
        lr = learning_rate(self.cfg.training, t)
        record = metrics.round_record(t, result, reports, modelled, lr, readings)
        clients = (
            [*metrics.client_records(t, result, reports, modelled)] if self.cfg.run.record_clients else []
        )
        for line in (record, *clients):
            _check_finite(line)
        self.run.append(METRICS, [record])
        if clients:
            self.run.append(CLIENTS, clients)
        self.after = After(t, self.run.marks(), self.after.history, result.state)
        listener.round_finished(record)

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
        self._saved_bytes = checkpoint.save_checkpoint(
            self.run / CHECKPOINT, self.after.round, config.dumps(self.cfg), *self.after[1:]
        )
        self._saved_at = perf_counter()
        self._saved_s = self._saved_at - began


def _check_finite(line: metrics.Record) -> None:
    """Diverged: a figure of a round is no number that a line can hold."""
    for key, value in line.items():
        if isinstance(value, float) and not math.isfinite(value):
            of = f" of client {line['client']}" if "client" in line else ""
            raise Diverged(
                f"expected a finite {key}{of} in round {line['round']}, got {value}: lower training.lr, "
                "clip with max_norm, or look at [devices] where it is a modelled one"
            )


def check_lines(run: RunDir, cfg: Config, after: After) -> None:
    """Before training goes on: lines for all rounds that are done, from which a summary can be made."""
    rounds = recorded.rounds_of(run.path)
    if len(rounds) != after.round + 1:
        raise RunDirError(
            f"expected {after.round + 1} lines in {run / METRICS}, as the checkpoint has rounds, "
            f"got {len(rounds)}"
        )
    if rounds:
        recorded.summarised(cfg, rounds)
