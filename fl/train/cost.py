"""What training a client costs in floating-point operations, by the counts of its pattern (algorithms.md 7).

forward(state) = sum over layers of  2 positions_l nnz_l  + biases;     a training step is 3 forward
growth: one batch with dense weight gradients counts as a dense step
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray
from torch import nn

import sparse_engine as se
from fl.train.local import Local


@dataclass(frozen=True)
class Cost:
    """Operations of one network, a sample."""

    positions: tuple[int, ...]  # how often an entry of each prunable weight is used, in the layout's order
    fixed: int  # a forward pass without the prunable weights: exempt ones, biases
    dense_forward: int

    @classmethod
    def of(cls, net: nn.Module, layout: se.Layout, shape: Sequence[int]) -> "Cost":
        """The cost of `net` on samples of `shape`."""
        counted = se.count_flops(net, shape)
        macs = {layer.name: layer.dense_macs for layer in counted.layers}
        sizes = dict(zip(layout.names, layout.shapes, strict=True))
        positions = tuple(macs.get(name, 0) // max(prod(size), 1) for name, size in sizes.items())
        prunable = sum(2 * macs.get(name, 0) for name in sizes)
        return cls(positions, counted.dense_forward - prunable, counted.dense_forward)

    def forward(self, mask: se.Bitmap) -> int:
        """A sample through the stored weights."""
        counts = mask.stored
        return self.fixed + sum(2 * p * n for p, n in zip(self.positions, counts, strict=True))

    def training(self, mask: se.Bitmap, samples: int) -> int:
        """Steps over `samples` (epochs counted) on the stored weights."""
        return 3 * samples * self.forward(mask)

    def dense_training(self, samples: int) -> int:
        return 3 * samples * self.dense_forward

    def scoring(self, mask: se.Bitmap, samples: int) -> int:
        """What a step over `samples` takes more if it has the gradients of all weights, not of the stored."""
        return samples * (self.dense_forward - self.forward(mask))


@dataclass(frozen=True)
class Costs:
    """Operations of clients' turns, known before these are taken: their reports will say the same."""

    cost: Cost
    samples: Sequence[int]  # training samples of every client

    def turn(
        self, k: int, mask: se.Bitmap, local: Local, *, grow_batches: int = 0, by_last_batch: bool = False
    ) -> int:
        """Operations of client k that trains on `mask` as `local` says, and then grows by the gradient of
        `grow_batches` batches at once, or of the last batch of its training."""
        n = self.samples[k]
        growth = self.cost.dense_training(min(grow_batches * local.batch_size, n))
        if by_last_batch:
            growth = self.cost.scoring(mask, last_batch(n, local)) if local.epochs else 0
        return local.passes * self.cost.training(mask, local.epochs * n) + growth

    def turns(
        self, counts: NDArray[np.int64], local: Local, *, grow_batches: int = 0, by_last_batch: bool = False
    ) -> NDArray[np.int64]:
        """`turn` of all clients; `counts`: what their masks store, [clients, weights]."""
        cost, n = self.cost, np.asarray(self.samples, np.int64)
        forward = cost.fixed + 2 * (counts @ np.array(cost.positions, np.int64))
        growth = 3 * cost.dense_forward * np.minimum(grow_batches * local.batch_size, n)
        if by_last_batch:
            last = np.where(n > 0, (n - 1) % local.batch_size + 1, 0)
            growth = last * (cost.dense_forward - forward) if local.epochs else 0 * n
        flop: NDArray[np.int64] = local.passes * 3 * local.epochs * n * forward + growth
        return flop


def last_batch(samples: int, local: Local) -> int:
    """Samples of the last batch of a training."""
    return (samples - 1) % local.batch_size + 1 if samples else 0
