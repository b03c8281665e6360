"""A client's turn in a round, as data: what the algorithms that average models have in common.

    w   <- mean of the client's model and its neighbours', on its mask
    test, train, test
    drift     ||w - w0|| on the client's first mask
    prune     the smallest entries, by PQ index
    move      RigL: the smallest entries of the mask go, others come
    message   its size, where numbers travel as they are

fl/train/visit_steps.py says what a visit means, for any trainer. Workers with a program take most visits in
one native call (fl/train/native_visit.py): the same results, bit by bit.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import sparse_engine as se
from fl.train.local import Local
from fl.train.report import Report


@dataclass(frozen=True, kw_only=True)
class Prune:
    """PQI pruning, not beyond a density."""

    config: se.PQIConfig
    target_density: float


@dataclass(frozen=True, kw_only=True)
class Move:
    """RigL: this fraction of every layer's entries moves.

    grow     by the largest gradients, or at random
    source   of gradients: fresh training batches, or the last batch of the training
    batches  fresh ones whose mean gradient decides
    """

    fraction: float
    grow: Literal["gradient", "random"] = "gradient"
    source: Literal["fresh", "last_batch"] = "fresh"
    batches: int = 1

    @property
    def by_last_batch(self) -> bool:
        return self.grow == "gradient" and self.source == "last_batch"


@dataclass(frozen=True, kw_only=True)
class Visit:
    """What every client of a round does; `drift`: how it is summed, None: not asked for. `message`: is the
    size of an exact one wanted?"""

    local: Local
    drift: Literal["norm", "squared"] | None = None
    prune: Prune | None = None
    move: Move | None = None
    message: bool = False


class Start(NamedTuple):
    """Whose models a visit begins with, the mask of their mean, and the mask of w0 where drift starts."""

    own: se.Model
    neighbours: Sequence[se.Model]
    mask: se.Bitmap
    first_mask: se.Bitmap | None = None


class Visited(NamedTuple):
    """What came of a visit; None where it was not asked for.

    pruned   the model after a pruning; `trained` itself without one
    mask     the next one
    nbytes   of the model's message, if it is known: of `trained`, where nothing was pruned
    """

    trained: se.Model
    pruned: se.Model
    report: Report
    drift: float | None = None
    mask: se.Bitmap | None = None
    nbytes: int | None = None
