"""Batches of one client: float32 [n, ...], (x - mean) / std where the set has these, and int64 labels.

In training the order is random, and where the set says so (CIFAR) every image is cropped at random out of
itself with 4 black pixels around it, and mirrored with probability 1/2. All of an epoch's randomness is drawn
when it starts: neither the batch size nor how far somebody reads changes it.

Batches of images are [n, C, H, W]. Their memory is in that order too, or [C, H, W, n] (`batch_last`), which
sparse layers read without a copy. The values are the same bits.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fl.data.dataset import Dataset, Part, X
from sparse_engine.nn.batch_last import Moves, gathered

PAD = 4
Batch = tuple[Tensor, Tensor]


def batches(
    data: Dataset,
    indices: NDArray[np.integer],
    batch_size: int,
    rng: np.random.Generator,
    *,
    batch_last: bool = False,
) -> Iterator[Batch]:
    """One epoch over the training samples `indices`, the last small batch included.

    Images are cropped and mirrored where the data set says so. One random batch: next(batches(...)).

    >>> import fl, numpy as np
    >>> data = fl.data.load("digits")
    >>> [len(y) for x, y in fl.data.batches(data, np.arange(100), 40, np.random.default_rng(0))]
    [40, 40, 20]
    """
    _check(batch_size, indices, data.train)
    order, moves = draw(data, indices, rng)
    return _made(data, data.train, order, batch_size, moves, batch_last)


class Draw(NamedTuple):
    """An epoch: samples in a random order, and how each is moved; None where they stay as they are."""

    order: NDArray[np.int64]
    moves: Moves | None


def draw(data: Dataset, indices: NDArray[np.integer], rng: np.random.Generator) -> Draw:
    """All randomness of one epoch over the training samples `indices`.

    >>> import fl, numpy as np
    >>> data = fl.data.load("digits")
    >>> sorted(draw(data, np.arange(4), np.random.default_rng(0)).order.tolist())
    [0, 1, 2, 3]
    """
    order = rng.permutation(indices).astype(np.int64, copy=False)
    rows, columns = rng.integers(0, 2 * PAD + 1, (2, len(order)))
    mirrored = rng.random(len(order)) < 0.5
    return Draw(order, Moves(rows, columns, mirrored, PAD) if data.augment else None)


def evaluation_batches(
    data: Dataset, indices: NDArray[np.integer], batch_size: int, *, batch_last: bool = False
) -> Iterator[Batch]:
    """The test samples `indices` in their order, as they are.

    >>> import fl, numpy as np
    >>> data = fl.data.load("digits")
    >>> [tuple(x.shape) for x, y in fl.data.evaluation_batches(data, np.arange(3), 2)]
    [(2, 1, 8, 8), (1, 1, 8, 8)]
    """
    _check(batch_size, indices, data.test)
    return _made(data, data.test, indices, batch_size, None, batch_last)


def _made(
    data: Dataset,
    part: Part,
    indices: NDArray[np.integer],
    batch_size: int,
    moves: Moves | None,
    batch_last: bool,
) -> Iterator[Batch]:
    """Batches of the samples `indices` of `part` in their order; `moves` are of all of them."""
    mean, std = (np.array(values, np.float32) if values else None for values in (data.mean, data.std))
    for start in range(0, len(indices), batch_size):
        now = slice(start, start + batch_size)
        chosen = indices[now].astype(np.int64)
        here = moves and moves.part(now)
        x = gathered(*_source(part.x, chosen), mean, std, here)
        yield x if batch_last and data.is_image else x.contiguous(), torch.from_numpy(part.labels[chosen])


def _source(x: X, chosen: NDArray[np.int64]) -> tuple[X, NDArray[np.int64]]:
    """Where a batch is read, and at which indices: in a copy if the samples do not lie one after another."""
    if x.flags.c_contiguous:
        return x, chosen
    return x[chosen].copy("C"), np.arange(len(chosen), dtype=np.int64)


def _check(batch_size: int, indices: NDArray, part: Part) -> None:
    if batch_size < 1:
        raise ValueError(f"expected a batch size of at least 1, got {batch_size}")
    if indices.ndim != 1 or indices.dtype.kind not in "iu":
        raise ValueError(f"expected indices as a list of integers, got {indices.dtype} {indices.shape}")
    if len(indices) and not (0 <= indices.min() and indices.max() < len(part)):
        given = f"{indices.min()} to {indices.max()}"
        raise ValueError(f"expected indices from 0 to {len(part) - 1}, got {given}")
