"""What a program is given: data, which samples in which order, and how a training steps."""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from sparse_engine.model.model import Model
from sparsefl.kernels.gather import Moves, X
from sparsefl.kernels.layout import Derived

__all__ = ["Batches", "Data", "Moves", "Trained", "Training", "batch_size"]


@dataclass(frozen=True, eq=False)
class Data:
    """Labelled samples [n, ...] in memory, and what batches are normalised with."""

    x: X
    labels: NDArray[np.int64]
    mean: NDArray[np.float32] | None = None
    std: NDArray[np.float32] | None = None
    derived: Derived = field(default_factory=Derived, repr=False)  # what a backend makes of it once


def batch_size(wanted: int, samples: int, tests: int) -> int:
    """Return the size of a client's batches: no more than it has samples, or test samples, to fill one."""
    return max(1, min(wanted, max(samples, tests)))


@dataclass(frozen=True, eq=False)
class Batches:
    """Which samples, in which order: `epochs` times as many, `size` per batch. An epoch's last is smaller."""

    data: Data
    order: NDArray[np.int64]
    size: int
    epochs: int = 1
    moves: Moves | None = None  # of every sample in that order

    @property
    def samples(self) -> int:
        """Of an epoch."""
        return len(self.order) // max(1, self.epochs)


@dataclass(frozen=True, kw_only=True)
class Training:
    """How a training steps.

    g            the gradient, scaled down to the norm `max_norm` if it is longer
    rho          g is taken at w + rho g / |g|  (SAM)
    d            g + weight_decay w
    u            momentum u + d,   w <- w - lr u
    pull         after it, w moves by `rate` times (w before the step - model's w)  (Ditto)
    """

    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    max_norm: float | None = None
    rho: float = 0.0
    pull: tuple[Model, float] | None = None  # a model on the same pattern, and the rate
    velocity: Model | None = None  # u: written into, so that another training can go on; None: starts from 0
    seeds: tuple[int, ...] = ()  # one per dropout
    first_pass: int = 0  # numbers the passes of dropout
    stop: NDArray[np.uint8] | None = None  # not 0: stop before the next batch
    scores: Tensor | None = None  # takes the last batch's dense gradients of all prunable weights, in order


class Trained(NamedTuple):
    """The loss summed over samples, how many were seen, and why it ended early if it did."""

    loss: float
    samples: int
    failed: tuple[int, float] | None = None  # a batch, and its loss that is not finite
    stopped: bool = False
    finite: bool = True  # is every number of the model?
    right: tuple[int, int] | None = None  # test samples that got their own class, before and after
    scored: int = 0  # samples of the batch whose dense gradients were kept
