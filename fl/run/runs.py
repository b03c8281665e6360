"""Runs as a whole: start one, go on with one, run one once more to compare it. The loop: fl/run/loop.py."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import sparse_engine as se
from fl import config
from fl.config import Config
from fl.data import Dataset, Partition, load, partition
from fl.errors import Interrupted, RunDirError
from fl.run import checkpoint, files, recorded
from fl.run.checkpoint import Head
from fl.run.events import Listener
from fl.run.loop import BEGIN, After, Options, Run, Summary, check_lines
from fl.run.names import BASELINE, CHECKPOINT, CONFIG, EXACT, METRICS, PARTITION, SUMMARY
from fl.run.rundir import RunDir
from fl.train import network
from fl.train.cost import Cost
from fl.train.worker import Setting
from fl.world import topology

__all__ = ["TWINS", "Interrupted", "Options", "Summary", "baseline", "prepare", "resume", "start"]

_DEFAULT = Options()


def start(cfg: Config, path: Path | str, options: Options = _DEFAULT, notes: Sequence[str] = ()) -> Summary:
    """A new run in `path`. `notes` on its configuration are told, and stand at the head of its file."""
    for note in notes:
        options.listener.note(note)
    cfg = config.settled(cfg)
    for remark in config.remarks(cfg):
        options.listener.note(remark)
    setting, links = prepare(cfg), _topology(cfg)  # data may be missing: then nothing is written
    with RunDir.create(path, options.overwrite) as run:
        run.write_text(CONFIG, config.dumps(cfg, notes))  # first: from now on the directory holds a run
        return _begun(Run(cfg, setting, links, run, options))


def resume(path: Path | str, options: Options = _DEFAULT) -> Summary:
    """Go on with the run in `path` after its last whole checkpoint. One that has ended stays as it is."""
    with RunDir.open(path) as run:
        cfg, _ = recorded.config_of(run.path)
        folder = run / CHECKPOINT
        checkpoint.clean(folder)
        if not checkpoint.rounds(folder):
            return _without_checkpoint(run, cfg, options)
        done = _ended(run, cfg, options.listener)
        if done is not None:
            return done
        made = Run(cfg, prepare(cfg), _topology(cfg), run, options)

        def restored(head: Head) -> After:
            same_config(head, cfg)
            return made.restored(head)

        after, problems = checkpoint.newest(folder, restored)
        _tell(options.listener, problems)
        run.cut(after.marks)
        check_lines(run, cfg, after)
        checkpoint.prune(folder, after.round)
        return made.finish(after)


def _begun(made: Run) -> Summary:
    """All of a run, of which nothing is done yet."""
    made.run.write_json(PARTITION, _shares(made.setting))
    made.run.begin()
    return made.finish(BEGIN)


def _without_checkpoint(run: RunDir, cfg: Config, options: Options) -> Summary:
    """The run ended and its checkpoints were removed; or no round was finished; or they are lost."""
    rounds = recorded.rounds_of(run.path)
    if run.has(SUMMARY) and len(rounds) == cfg.num_rounds:
        return _summary(run)
    if len(rounds) > ((cfg.run.checkpoint_every or 1) if run.has(CHECKPOINT) else 0):
        raise RunDirError(
            f"expected a checkpoint in {run / CHECKPOINT}, got none, though {METRICS} has {len(rounds)} "
            f"rounds: put the folder back; or start again, which removes them, with "
            f"sparsefl run {run / CONFIG} --out {run.path} --overwrite"
        )
    return _begun(Run(cfg, prepare(cfg), _topology(cfg), run, options))


def _ended(run: RunDir, cfg: Config, listener: Listener) -> Summary | None:
    """The summary of a run whose last round is done, after a look at its lines; None: it has to go on."""
    if not run.has(SUMMARY):
        return None

    def last(head: Head) -> Head:
        same_config(head, cfg)
        return head

    head, problems = checkpoint.newest(run / CHECKPOINT, last)
    if head.round != cfg.num_rounds - 1:
        return None
    _tell(listener, problems)
    run.cut(head.marks)
    checkpoint.prune(run / CHECKPOINT, head.round)
    return _summary(run)


def _summary(run: RunDir) -> Summary:
    """What was recorded, with the runs that ended beside it since."""
    summary = recorded.read(run.path, clients=False).summary
    assert summary is not None  # there are rounds
    beside = {folder: told for folder, told in recorded.twins(run.path).items() if told is not None}
    if any(summary[folder] != told for folder, told in beside.items()):
        summary |= beside
        run.write_json(SUMMARY, summary)
    return summary


def same_config(head: Head, cfg: Config) -> None:
    """RunDirError: a checkpoint is of a run with another configuration."""
    if recorded.parsed(head.config) != cfg:
        changes = sorted(set(config.dumps(cfg).splitlines()) - set(head.config.splitlines()))
        raise RunDirError(f"expected {CONFIG} as the run was started with, got it with {changes}")


def _tell(listener: Listener, problems: list[str]) -> None:
    for problem in problems:
        listener.note(f"damaged checkpoint left aside: {problem}")


class _Twin(NamedTuple):
    """A run that differs in one setting, and where it goes."""

    folder: str
    key: str
    value: str


TWINS = {
    "dense": _Twin(BASELINE, "training.kernels", "dense"),
    "fp32": _Twin(EXACT, "messages.values", "fp32"),
}


def baseline(path: Path | str, options: Options = _DEFAULT, against: str = "dense") -> Summary:
    """The finished run of `path` once more, on dense kernels or with exact messages, in a folder of its own;
    started or resumed. The summary of `path` then names both."""
    cfg, twin = recorded.config_of(Path(path))[0], TWINS[against]
    other = config.changed(cfg, [f"{twin.key}={twin.value}"])
    if other == cfg:
        raise config.ConfigError(f"{twin.key}: expected another for a comparison, got {twin.value}")
    below = RunDir(path) / twin.folder
    if files.is_folder(below) and files.exists(below, CONFIG):
        resume(below, options)
    else:
        start(other, below, options)
    with RunDir.open(path) as run:
        return _summary(run)


def prepare(cfg: Config) -> Setting:
    """Data, partition, network and first weights of a run."""
    try:
        natural = cfg.data.partition == "groups"
        data = load(cfg.data.name, cfg.data.root, size=cfg.data.size, natural=natural)
        parts = _divided(data, cfg)
    except ValueError as wrong:
        raise config.ConfigError(f"data: {wrong}") from wrong
    net = network.build(cfg.model, data, cfg.seed)
    network.check_batches(net, data, parts.train.sizes, cfg.training.batch_size)
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
        copies=given.copies,
        seed=cfg.seed,
    )


def _topology(cfg: Config) -> topology.Topology:
    given = cfg.topology.model_dump()
    try:
        return topology.make(given.pop("kind"), cfg.num_clients, seed=cfg.seed, **given)
    except ValueError as wrong:
        raise config.ConfigError(f"topology: {wrong}") from wrong


def _shares(setting: Setting) -> dict[str, Any]:
    parts = setting.partition
    counts = {"train": parts.train_counts.tolist(), "test": parts.test_counts.tolist()}
    return {"classes": list(setting.data.classes)} | counts
