"""A client's whole turn as data: mean with others on a mask, test, train, test, drift, growth, message.

`Plan` is what all clients of a round do alike, `Visitor` is one of them, `Visited` what came of it. Draws
come from streams whose keys are given (fl/rng.py), so a turn is the same wherever it is taken.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sparse_engine.model.model import Model
from sparse_engine.program.batches import Data, Trained, Training
from sparsefl.kernels.layout import Bitmap


@dataclass(frozen=True, eq=False)
class Share:
    """A part of a data set and who has which of its samples: client k those of indices[pointers[k]] to
    indices[pointers[k + 1] - 1]."""

    data: Data
    pointers: NDArray[np.int64]
    indices: NDArray[np.int32] | NDArray[np.int64]

    def count(self, k: int) -> int:
        """How many samples client k has."""
        return int(self.pointers[k + 1] - self.pointers[k])


@dataclass(frozen=True, kw_only=True)
class Growing:
    """RigL by a gradient. `batch`: how many fresh samples that is of; 0: it is that of the last batch."""

    fraction: float
    batch: int
    order: int = 0  # the key of the stream that draws them


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """What all clients of a round do alike. Its training's seeds are the visitor's."""

    round: int
    epochs: int
    batch: int
    training: Training
    order: int  # the key of the stream that draws batches
    padding: int  # of crops: their corners are drawn even if samples stay as they are
    moved: bool = False  # are samples cropped and mirrored?
    growing: Growing | None = None
    origin: Model | None = None  # everything stored: where drift starts
    message: bool = False  # is the size of its message wanted?


class Visitor(NamedTuple):
    """Client k: its model and its neighbours', the mask of their mean, and that of the origin of drift."""

    k: int
    models: Sequence[Model]
    mask: Bitmap
    first_mask: Bitmap | None = None
    seeds: tuple[int, ...] = ()  # of dropouts, in training
    growth_seeds: tuple[int, ...] = ()


class Visited(NamedTuple):
    """The trained model and what is asked for besides; None where it is not.

    norms    float64: of the differences to the origin, tensor by tensor
    grown    the next pattern; the name of a weight instead if its gradient is not finite
    samples  of the batch of growth
    nbytes   of the message
    seconds  of training, with tests
    """

    model: Model
    trained: Trained
    norms: NDArray[np.float64] | None = None
    grown: Bitmap | str | None = None
    samples: int = 0
    nbytes: int | None = None
    seconds: float = 0.0
