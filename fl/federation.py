"""The loop: set up, run rounds, record, save, resume. Once for all algorithms.

After every round its line is on disk, then (every `checkpoint_every` rounds) the state, with the length that
the growing files have; resuming cuts them to that length. So a process may be killed at any moment, and the
resumed run writes what the other would have written. The files: fl/rundir.py.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import torch

import sparse_engine as se
from fl import algorithms, checkpoint, config, metrics, network, store, topology
from fl.algorithms.base import Env
from fl.checkpoint import Checkpoint
from fl.client import Setting, learning_rate
from fl.config import Config
from fl.cost import Cost
from fl.data import Dataset, Partition, load, partition
from fl.devices import DeviceModel
from fl.errors import CheckpointError, Interrupted
from fl.executor import Local
from fl.messages import Sent
from fl.progress import Listener
from fl.rundir import (
    BASELINE,
    CHECKPOINT,
    CLIENTS,
    CONFIG,
    EXACT,
    METRICS,
    PARTITION,
    SUMMARY,
    RunDir,
    read_jsonl,
)
from sparse_engine.environment import environment

Summary = dict[str, Any]


@dataclass(frozen=True)
class Options:
    """How to run, which changes no result."""

    workers: int | None = None  # default: one a core
    listener: Listener = Listener()

    @property
    def num_workers(self) -> int:
        return self.workers or len(os.sched_getaffinity(0))


_DEFAULT = Options()


def start(cfg: Config, path: Path | str, options: Options = _DEFAULT, notes: Sequence[str] = ()) -> Summary:
    """A new run in `path`. `notes` on its configuration are told, and stand at the head of its file."""
    for note in notes:
        options.listener.note(note)
    cfg = config.settled(cfg)
    for remark in config.remarks(cfg):
        options.listener.note(remark)
    made = _Run(cfg, options)  # data may be missing: then nothing is written
    with RunDir.create(path) as run:
        run.write_json(PARTITION, _shares(made.setting))
        run.write_text(CONFIG, config.dumps(cfg, notes))
        return made.finish(run, None)


def resume(path: Path | str, options: Options = _DEFAULT) -> Summary:
    """Go on with the run in `path` after its last whole checkpoint."""
    with RunDir.open(path) as run:
        cfg = config.load(run / CONFIG)
        return _Run(cfg, options).finish(run, _last_checkpoint(run, cfg, options.listener))


class _Twin(NamedTuple):
    """A run that differs in one setting: where it goes, and what of its summary goes into the other's."""

    folder: str
    key: str
    value: str
    told: tuple[str, ...]


_ACCURACY = ("accuracy_best", "accuracy_last5", "accuracy_last")
TWINS = {
    "dense": _Twin(BASELINE, "training.kernels", "dense", ("kernels", "wall_s", "train_s", *_ACCURACY)),
    "fp32": _Twin(EXACT, "messages.values", "fp32", ("values", "bytes_total", *_ACCURACY)),
}


def baseline(path: Path | str, options: Options = _DEFAULT, against: str = "dense") -> Summary:
    """The finished run of `path` once more, on dense kernels or with exact messages, in a folder of its own;
    started or resumed. The summary of `path` then names both."""
    cfg, twin = config.load(Path(path) / CONFIG), TWINS[against]
    other = config.changed(cfg, [f"{twin.key}={twin.value}"])
    if other == cfg:
        raise config.ConfigError(f"{twin.key}: expected another for a comparison, got {twin.value}")
    below = Path(path) / twin.folder
    if (below / CONFIG).exists():
        resume(below, options)
    else:
        start(other, below, options)
    with RunDir.open(path) as run:
        summary = run.read_json(SUMMARY) | _twins(run)
        run.write_json(SUMMARY, summary)
    return summary


def prepare(cfg: Config) -> Setting:
    """Data, partition, network and first weights of a run."""
    try:
        data = load(cfg.data.name, cfg.data.root, size=cfg.data.size)
        parts = _divided(data, cfg)
    except ValueError as wrong:
        raise config.ConfigError(f"data: {wrong}") from wrong
    net = network.build(cfg.model, data, cfg.seed)
    exempt = tuple(cfg.model.exempt)
    initial = se.compress(net, exempt=exempt)
    cost = Cost.of(net, initial.layout, data.shape)
    return Setting(cfg.training, exempt, cfg.seed, data, parts, net, initial, cost, cfg.data.augment)


def _divided(data: Dataset, cfg: Config) -> Partition:
    given = cfg.data
    return partition(
        data,
        cfg.num_clients,
        given.partition,
        alpha=given.alpha,
        classes_per_client=given.classes_per_client,
        train_per_client=given.train_per_client,
        test_per_client=given.test_per_client,
        disjoint=given.disjoint,
        seed=cfg.seed,
    )


def _topology(cfg: Config) -> topology.Topology:
    given = cfg.topology.model_dump()
    try:
        return topology.make(given.pop("kind"), cfg.num_clients, seed=cfg.seed, **given)
    except ValueError as wrong:
        raise config.ConfigError(f"topology: {wrong}") from wrong


class _After(NamedTuple):
    """Where a run stands: the last round that is done, how long the growing files were, and the state."""

    round: int
    sizes: dict[str, int]
    state: Any


class _Run:
    """One run, from some round to the last."""

    run: RunDir
    after: _After  # replaced as a whole: an interrupt finds the old or the new one

    def __init__(self, cfg: Config, options: Options) -> None:
        self.cfg, self.options = cfg, options
        self.setting, self.topology = prepare(cfg), _topology(cfg)
        self.algorithm = algorithms.registered()[cfg.algorithm]

    def finish(self, run: RunDir, found: Checkpoint | None) -> Summary:
        """All rounds that are left, and the summary, in the directory `run`."""
        self.run = run
        self.after = _After(-1, run.sizes(), None) if found is None else self._restored(found)
        del found  # or its tensors would live as long as the run
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # torch's results may depend on it
        listener = self.options.listener
        listener.run_started(self.cfg, run.path, self.after.round + 1)
        try:
            with Local(self.setting, self.options.num_workers, listener) as executor:
                self._rounds(self._env(executor), executor)
        finally:
            listener.run_stopped()
            torch.set_num_threads(threads)
        rounds = read_jsonl(run / METRICS)
        summary = metrics.summarise(self.cfg, rounds, self.options.num_workers, environment())
        summary |= _twins(run)
        run.write_json(SUMMARY, summary)
        return summary

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
                executor.reports()  # of what init did
            for t in range(saved + 1, self.cfg.num_rounds):
                self._round(t, env, executor)
                if (t + 1) % self.cfg.run.checkpoint_every == 0 or t + 1 == self.cfg.num_rounds:
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
        began = perf_counter()
        result = self.algorithm.run_round(self.after.state, t, env)
        seconds = perf_counter() - began
        reports = executor.reports()
        devices = env.devices.devices(env.num_clients, env.seed, t)
        modelled = metrics.modelled(result, reports, env.devices, devices)
        lr = learning_rate(self.cfg.training, t)
        record = metrics.round_record(t, result, reports, modelled, lr, seconds)
        self.run.append(METRICS, [record])
        if self.cfg.run.record_clients:
            self.run.append(CLIENTS, metrics.client_records(t, result, reports, modelled))
        self.after = _After(t, self.run.sizes(), result.state)
        listener.round_finished(record)

    def _save(self) -> None:
        checkpoint.save_checkpoint(
            self.run / CHECKPOINT, self.after.round, config.dumps(self.cfg), *self.after[1:]
        )

    def _restored(self, found: Checkpoint) -> _After:
        kinds = {name: x for name, x in vars(self.algorithm).items() if isinstance(x, type)}
        types = {"Sent": Sent} | {name: kind for name, kind in kinds.items() if is_dataclass(kind)}
        state = store.put_together(found.state, found.tensors, types, self.setting.initial.layout)
        return _After(found.round, found.sizes, state)


def _last_checkpoint(run: RunDir, cfg: Config, listener: Listener) -> Checkpoint | None:
    """The one to go on from, with the growing files cut to its length; None: no round was finished."""
    folder = run / CHECKPOINT
    checkpoint.clean(folder)
    if not any(folder.glob("round-*")):
        run.truncate({METRICS: 0, CLIENTS: 0})
        return None
    found, problems = checkpoint.load_checkpoint(folder)
    for problem in problems:
        listener.note(f"damaged checkpoint left aside: {problem}")
    if config.loads(found.config) != cfg:
        changes = sorted(set(config.dumps(cfg).splitlines()) - set(found.config.splitlines()))
        raise CheckpointError(f"expected {CONFIG} as the run was started with, got it with {changes}")
    run.truncate(found.sizes)
    return found


def _twins(run: RunDir) -> dict[str, dict[str, Any] | None]:
    """What the finished runs beside this one say, by folder."""
    found: dict[str, dict[str, Any] | None] = {}
    for twin in TWINS.values():
        there = (run / twin.folder / SUMMARY).exists()
        summary = run.read_json(f"{twin.folder}/{SUMMARY}") if there else {}
        found[twin.folder] = {key: summary[key] for key in twin.told} if there else None
    return found


def _shares(setting: Setting) -> dict[str, Any]:
    parts = setting.partition
    counts = {"train": parts.train_counts.tolist(), "test": parts.test_counts.tolist()}
    return {"classes": list(setting.data.classes)} | counts
