"""The seam between algorithms and training: what trains clients (Trainer), and one client's turn (Turn).

    turn = trainer.turn(k, t, start)
    report = turn.train_and_test(local)
    trained = turn.model()

Algorithms know these two alone. fl/train/worker.py and fl/train/turn.py implement them.
"""

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import sparse_engine as se
from fl.train.local import Local
from fl.train.report import Report
from fl.train.visit import Start, Visit, Visited


class Grown(NamedTuple):
    """A mask that moved, and the work that it took."""

    mask: se.Bitmap
    report: Report


class Gradient(NamedTuple):
    """A gradient in the form of a model, and the work that it took."""

    g: se.Model
    report: Report


class Turn(Protocol):
    """One client's turn in one round. Its model stays where it is trained until somebody asks for it."""

    def train(self, local: Local) -> Report:
        """Trains the model on the client's samples. The report has no accuracies."""

    def train_and_test(self, local: Local, *, scores: bool = False) -> Report:
        """Trains the model, and reports the accuracies before and after it too.

        `scores`: keep the last batch's gradient of every prunable weight, also outside the mask, for
        `grow_by_scores`. It is that before the last step.
        """

    def test(self) -> float | None:
        """Accuracy of the model on the client's own test samples; None where it has none."""

    def grow(self, fraction: float, batches: int = 1) -> Grown:
        """RigL's next pattern of the model, grown by the gradient of a fresh batch (or `batches` at once)."""

    def grow_by_scores(self, fraction: float) -> Grown:
        """RigL's next pattern of the model, grown by the gradient that a training with `scores` kept."""

    def gradient(self) -> Gradient:
        """The gradient of the mean loss over all samples, where the model stores entries. Buffers are 0."""

    def model(self) -> se.Model:
        """The model as it is now, in memory of its own."""

    def load(self, model: se.Model) -> None:
        """Goes on with another model."""


class Trainer(Protocol):
    """Takes clients' turns, one after the other. Every worker has one of its own.

    A turn of the common kind is a visit, described as data (fl/train/visit.py).
    """

    @property
    def initial(self) -> se.Model:
        """w0, everything stored."""

    def turn(self, k: int, t: int, start: se.Model) -> Turn:
        """The turn of client k in round t, which begins with the model `start`. It ends the turn before."""

    def visits(self, t: int, starts: Mapping[int, Start], visit: Visit) -> dict[int, Visited]:
        """The turns of these clients in round t, of the common kind, one after the other."""

    def num_samples(self, k: int) -> int:
        """Training samples of client k."""

    def seed(self, purpose: str, t: int = 0, k: int = 0) -> int:
        """A number for what takes a seed, from the stream of that name."""
