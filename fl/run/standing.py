"""Where a run in a directory stands: its last whole checkpoint, and what the files must say of it."""

from fl.config import Config
from fl.errors import RunDirError
from fl.run import checkpoint, recorded, restore
from fl.run.checkpoint import Head
from fl.run.events import Listener
from fl.run.loop import After, Run
from fl.run.names import CHECKPOINT, CONFIG, METRICS
from fl.run.rundir import RunDir
from fl.units import counted


def put(run: RunDir, made: Run) -> None:
    """`made` stands where the run in the directory does; what was written after that is cut off."""
    folder = run / CHECKPOINT

    def restored(head: Head) -> After:
        restore.same_config(head, made.cfg)
        return made.restored(folder, head)

    made.after, problems = checkpoint.newest(folder, restored)
    tell(made.options.listener, problems)
    run.cut(made.after.marks)
    _check_lines(run, made)
    checkpoint.prune(folder, made.after.round)


def check_not_begun(run: RunDir, cfg: Config, rounds: int) -> None:
    """RunDirError: there is no checkpoint, though so many rounds are done."""
    if rounds > ((cfg.run.checkpoint_every or 1) if run.has(CHECKPOINT) else 0):
        raise RunDirError(
            f"expected a checkpoint in {run / CHECKPOINT}, got none, though {METRICS} has "
            f"{counted(rounds, 'round')}: put the folder back; or start again, which removes them, with "
            f"sparsefl run {run / CONFIG} --out {run.path} --overwrite"
        )


def tell(listener: Listener, problems: list[str]) -> None:
    """Of checkpoints that are damaged."""
    for problem in problems:
        listener.note(f"damaged checkpoint left aside: {problem}")


def _check_lines(run: RunDir, made: Run) -> None:
    """Before training goes on: lines for all rounds that are done, from which a summary can be made."""
    rounds = recorded.rounds_of(run.path)
    if len(rounds) != made.after.round + 1:
        raise RunDirError(
            f"expected {made.after.round + 1} lines in {run / METRICS}, as the checkpoint has rounds, "
            f"got {len(rounds)}"
        )
    if rounds:
        recorded.summarised(made.cfg, rounds)
