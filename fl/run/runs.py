"""Runs as a whole: start one, go on with one, run one once more to compare it. The loop: fl/run/loop.py."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fl import config
from fl.config import Config, Loaded
from fl.errors import Interrupted
from fl.run import checkpoint, files, origins, recorded, restore, standing, stopping
from fl.run.checkpoint import Head
from fl.run.events import Listener
from fl.run.loop import Options, Summary
from fl.run.names import BASELINE, CHECKPOINT, CONFIG, EXACT, SUMMARY
from fl.run.rundir import RunDir
from fl.run.simulation import Simulation

__all__ = ["TWINS", "Interrupted", "Options", "Summary", "baseline", "resume", "start", "twin_of"]

_DEFAULT = Options()


def start(cfg: Config, path: Path | str, options: Options = _DEFAULT, notes: Sequence[str] = ()) -> Summary:
    """A new run in `path`. `notes` on its configuration are told, and stand at the head of its file."""
    return _finished(Simulation(Loaded(cfg, tuple(notes)), out=path, options=options))


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
        made = Simulation(cfg, out=run, options=options)
        origins.compare(run, cfg, options.listener)
        standing.put(run, made.loop)
        return _finished(made)


def _finished(simulation: Simulation) -> Summary:
    """Return the summary of all rounds. Interrupted: a user stopped it; what it did until then is saved."""
    try:
        return simulation.run().summary
    except KeyboardInterrupt:
        raise Interrupted from None


def _without_checkpoint(run: RunDir, cfg: Config, options: Options) -> Summary:
    """The run ended and its checkpoints were removed; or no round was finished; or they are lost."""
    rounds = recorded.rounds_of(run.path)
    if run.has(SUMMARY) and len(rounds) == stopping.length(cfg, rounds):
        return _summary(run)
    standing.check_not_begun(run, cfg, len(rounds))
    made = Simulation(cfg, out=run, options=options)
    origins.write(run, cfg)  # no round is done: it starts now
    return _finished(made)


def _ended(run: RunDir, cfg: Config, listener: Listener) -> Summary | None:
    """The summary of a run whose last round is done, after a look at its lines; None: it has to go on."""
    if not run.has(SUMMARY):
        return None

    def last(head: Head) -> Head:
        restore.same_config(head, cfg)
        return head

    head, problems = checkpoint.newest(run / CHECKPOINT, last)
    there = recorded.rounds_of(run.path, head.round + 1)
    if head.round + 1 != stopping.length(cfg, there):
        return None
    standing.tell(listener, problems)
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


class _Twin(NamedTuple):
    """A run that differs in one setting, and where it goes."""

    folder: str
    key: str
    value: str


TWINS = {
    "dense": _Twin(BASELINE, "training.kernels", "dense"),
    "fp32": _Twin(EXACT, "messages.values", "fp32"),
}


def twin_of(cfg: Config, against: str) -> Config:
    """The configuration of the run to compare with. ConfigError: nothing can be compared."""
    twin = TWINS[against]
    other = config.changed(cfg, [f"{twin.key}={twin.value}"])
    if other == cfg:
        raise config.ConfigError(f"{twin.key}: expected another for a comparison, got {twin.value}")
    if cfg.run.patience is not None:
        raise config.ConfigError(
            "run.patience: expected none for a comparison with a baseline, since both must run the same "
            f"rounds, got {cfg.run.patience}"
        )
    return other


def baseline(path: Path | str, options: Options = _DEFAULT, against: str = "dense") -> Summary:
    """The finished run of `path` once more, on dense kernels or with exact messages, in a folder of its own;
    started or resumed. The summary of `path` then names both."""
    cfg, twin = recorded.config_of(Path(path))[0], TWINS[against]
    other = twin_of(cfg, against)
    below = RunDir(path) / twin.folder
    if files.is_folder(below) and files.exists(below, CONFIG):
        resume(below, options)
    else:
        start(other, below, options)
    with RunDir.open(path) as run:
        return _summary(run)
