"""When a run stops before its last round: `run.patience` tested rounds without a gain.

A gain is an accuracy_mean that is above the one of the gain before by more than `run.min_gain`; the first one
is a gain. Rounds without an accuracy do not count. The lines of a run alone decide, so a run that is resumed
stops where it would have stopped.
"""

from collections.abc import Iterable, Sequence
from math import inf
from typing import Any, NamedTuple

from fl.config import Config
from fl.units import counted

Record = dict[str, Any]


class Stop(NamedTuple):
    """After which round, and why."""

    round: int
    why: str


class Watch:
    """Sees the lines of a run one after the other."""

    def __init__(self, cfg: Config, rounds: Iterable[Record] = ()) -> None:
        """`rounds`: those that were seen before."""
        self._run, self._last = cfg.run, cfg.num_rounds - 1
        self._best, self._waited = -inf, 0
        self.stop: Stop | None = None  # early; not for the last round
        for line in rounds:
            self.see(line)

    def see(self, line: Record) -> Stop | None:
        """`stop`, after one more line."""
        accuracy, patience = line.get("accuracy_mean"), self._run.patience
        if patience is None or accuracy is None or self.stop is not None:
            return self.stop
        gained = accuracy > self._best + self._run.min_gain
        self._best, self._waited = (accuracy, 0) if gained else (self._best, self._waited + 1)
        if self._waited >= patience and line["round"] < self._last:
            self.stop = Stop(line["round"], self._why())
        return self.stop

    def _why(self) -> str:
        gain = f" by more than {self._run.min_gain:g}" if self._run.min_gain else ""
        return f"accuracy_mean has not risen{gain} for {counted(self._waited, 'round')}"


def early(cfg: Config, rounds: Sequence[Record]) -> Stop | None:
    """Where a run with these lines stopped; None: it goes on, or to its last round.

    >>> from fl import config
    >>> cfg = config.load("demo", ["run.patience=2", "run.min_gain=0.01"])
    >>> accuracies = 0.5, 0.6, 0.605, 0.609, 0.7
    >>> early(cfg, [{"round": t, "accuracy_mean": a} for t, a in enumerate(accuracies)])
    Stop(round=3, why='accuracy_mean has not risen by more than 0.01 for 2 rounds')
    """
    return Watch(cfg, rounds).stop


def length(cfg: Config, rounds: Sequence[Record]) -> int:
    """How many rounds a run has that begins with these lines, as far as they say."""
    stop = early(cfg, rounds)
    return cfg.num_rounds if stop is None else stop.round + 1
