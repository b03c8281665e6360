"""The loop: set up, run rounds, record, save, resume. Once for all algorithms.

After every round its line is on disk, then (every `checkpoint_every` rounds) the state, with the length that
the growing files have; resuming cuts them to that length. So a process may be killed at any moment, and the
resumed run writes what the other would have written. The files: fl/rundir.py.
"""

import os
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

import sparse_engine as se
from fl import algorithms, checkpoint, config, metrics, network, store, topology
from fl.algorithms.base import Env
from fl.checkpoint import Checkpoint, CheckpointError
from fl.client import Setting, learning_rate
from fl.config import Config
from fl.cost import Cost
from fl.data import load, partition
from fl.devices import DeviceModel
from fl.executor import Local
from fl.progress import Listener
from fl.rundir import (
    BASELINE,
    CHECKPOINT,
    CLIENTS,
    CONFIG,
    METRICS,
    PARTITION,
    SUMMARY,
    RunDir,
    read_jsonl,
)
from sparse_engine.environment import environment

Summary = dict[str, Any]


class Interrupted(Exception):
    """Somebody asked the run to stop; what it did until then is saved."""


@dataclass(frozen=True)
class Options:
    """How to run, which changes no result."""

    workers: int | None = None  # default: one a core
    listener: Listener = Listener()

    @property
    def num_workers(self) -> int:
        return self.workers or len(os.sched_getaffinity(0))


_DEFAULT = Options()


def start(cfg: Config, path: Path | str, options: Options = _DEFAULT) -> Summary:
    """A new run in `path`."""
    with RunDir.create(path) as run:
        setting = prepare(cfg)  # data may be missing: then nothing is written
        run.write_json(PARTITION, _shares(setting))
        run.write_text(CONFIG, config.dumps(cfg))
        return _Run(cfg, setting, run, options).finish(None)


def resume(path: Path | str, options: Options = _DEFAULT) -> Summary:
    """Go on with the run in `path` after its last whole checkpoint."""
    with RunDir.open(path) as run:
        cfg = config.load(run / CONFIG)
        found = _last_checkpoint(run, cfg, options.listener)
        return _Run(cfg, prepare(cfg), run, options).finish(found)


def baseline(path: Path | str, options: Options = _DEFAULT) -> Summary:
    """The finished run of `path` once more on dense kernels, in its folder `baseline`; started or resumed.
    The summary of `path` then names both."""
    cfg, below = config.load(Path(path) / CONFIG), Path(path) / BASELINE
    if cfg.training.kernels == "dense":
        raise config.ConfigError("training.kernels: expected sparse for a comparison with dense, got dense")
    if (below / CONFIG).exists():
        dense = resume(below, options)
    else:
        dense = start(config.changed(cfg, ["training.kernels=dense"]), below, options)
    with RunDir.open(path) as run:
        keys = ("kernels", "wall_s", "train_s", "accuracy_best", "accuracy_last")
        summary = run.read_json(SUMMARY) | {"baseline": {key: dense[key] for key in keys}}
        run.write_json(SUMMARY, summary)
    return summary


def prepare(cfg: Config) -> Setting:
    """Data, partition, network and first weights of a run."""
    data = load(cfg.data.name, cfg.data.root, size=cfg.data.size)
    parts = partition(
        data,
        cfg.num_clients,
        cfg.data.partition,
        alpha=cfg.data.alpha,
        classes_per_client=cfg.data.classes_per_client,
        train_per_client=cfg.data.train_per_client,
        test_per_client=cfg.data.test_per_client,
        disjoint=cfg.data.disjoint,
        seed=cfg.seed,
    )
    net = network.build(cfg.model, data, cfg.seed)
    exempt = tuple(cfg.model.exempt)
    initial = se.compress(net, exempt=exempt)
    cost = Cost.of(net, initial.layout, data.shape)
    return Setting(cfg.training, exempt, cfg.seed, data, parts, net, initial, cost, cfg.data.augment)


class _Run:
    """One run in its directory, from some round to the last."""

    def __init__(self, cfg: Config, setting: Setting, run: RunDir, options: Options) -> None:
        self.cfg, self.setting, self.run, self.options = cfg, setting, run, options
        self.algorithm = algorithms.registered()[cfg.algorithm]

    def finish(self, found: Checkpoint | None) -> Summary:
        """All rounds that are left, and the summary."""
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # torch's results may depend on it
        listener = self.options.listener
        try:
            with Local(self.setting, self.options.num_workers, listener) as executor:
                self._rounds(found, self._env(executor), executor)
        finally:
            listener.run_stopped()
            torch.set_num_threads(threads)
        rounds = read_jsonl(self.run / METRICS)
        summary = metrics.summarise(self.cfg, rounds, self.options.num_workers, environment())
        self.run.write_json(SUMMARY, summary)
        return summary

    def _env(self, executor: Local) -> Env:
        cfg = self.cfg
        graph = topology.make(
            cfg.topology.kind,
            cfg.num_clients,
            degree=cfg.topology.degree,
            seed=cfg.seed,
            redraw=cfg.topology.redraw,
            edges=cfg.topology.edges,
        )
        devices, initial = DeviceModel(**dict(cfg.devices)), self.setting.initial
        sizes = cfg.num_clients, cfg.num_rounds, cfg.seed
        return Env(cfg.settings, *sizes, initial, graph, executor, devices)

    def _rounds(self, found: Checkpoint | None, env: Env, executor: Local) -> None:
        first = 0 if found is None else found.round + 1
        self.options.listener.run_started(self.cfg, self.run.path, first)
        state = self.algorithm.init(env) if found is None else self._restore(found)
        saved = done = first - 1
        sizes = self.run.sizes()
        try:
            for t in range(first, self.cfg.num_rounds):
                state, sizes, done = self._round(state, t, env, executor), self.run.sizes(), t
                if (t + 1) % self.cfg.run.checkpoint_every == 0 or t + 1 == self.cfg.num_rounds:
                    self._save(t, sizes, state)
                    saved = t
        except KeyboardInterrupt:
            if done > saved:
                self._save(done, sizes, state)
            raise Interrupted from None

    def _round(self, state: Any, t: int, env: Env, executor: Local) -> Any:
        listener = self.options.listener
        listener.round_started(t)
        began = perf_counter()
        result = self.algorithm.run_round(state, t, env)
        seconds = perf_counter() - began
        reports = executor.reports()
        devices = env.devices.devices(env.num_clients, env.seed, t)
        modelled = metrics.modelled(result, reports, env.devices, devices)
        lr = learning_rate(self.cfg.training, t)
        record = metrics.round_record(t, result, reports, modelled, lr, seconds)
        self.run.append(METRICS, [record])
        if self.cfg.run.record_clients:
            self.run.append(CLIENTS, metrics.client_records(t, result, reports, modelled))
        listener.round_finished(record)
        return result.state

    def _save(self, t: int, sizes: dict[str, int], state: Any) -> None:
        text = config.dumps(self.cfg)
        checkpoint.save_checkpoint(self.run / CHECKPOINT, t, text, sizes, state)

    def _restore(self, found: Checkpoint) -> Any:
        types = {
            name: x for name, x in vars(self.algorithm).items() if isinstance(x, type) and is_dataclass(x)
        }
        return store.put_together(found.state, found.tensors, types, self.setting.initial.layout)


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
    if found.config != config.dumps(cfg):
        raise CheckpointError(
            f"expected the {CONFIG} that the run was started with, got another: "
            + _changes(found.config, cfg)
        )
    run.truncate(found.sizes)
    return found


def _changes(text: str, cfg: Config) -> str:
    ours, theirs = (flat.splitlines() for flat in (config.dumps(cfg), text))
    return "; ".join(line for line in ours if line not in theirs) or "keys are missing"


def _shares(setting: Setting) -> dict[str, Any]:
    parts = setting.partition
    counts = {"train": parts.train_counts.tolist(), "test": parts.test_counts.tolist()}
    return {"classes": list(setting.data.classes)} | counts
