"""PQI pruning (SAP): how compressible a layer is says how many of its weights go; the smallest go.

    d = stored entries of the layer
    I = 1 - mean(|w|^p)^(1/p) / mean(|w|^q)^(1/q)
    r = d (1 + eta_c)^(-q/(q-p)) (1 - I)^(pq/(q-p))       to retain
    c = floor(d min(gamma (1 - r/d), beta)),   0 <= c < d   to prune

With `round_up`, ceil(r) stands for r, as in the authors' code: for gamma = 1 that is the same number.
Exactly the c smallest |w| go, ties by position. Counts are float64 arithmetic, so one may be 1 above that of
the authors' float32 code. The defaults are that code's values.
"""

import math
from dataclasses import dataclass
from typing import overload

import torch
from torch import Tensor

from sparse_engine.model.masks import check_density
from sparse_engine.model.model import Model
from sparse_engine.model.tensor import SparseTensor
from sparsefl.kernels import bitmap as bitmaps
from sparsefl.kernels.layout import Bitmap
from sparsefl.kernels.pqi import pqi as pq
from sparsefl.kernels.select import select


@dataclass(frozen=True)
class PQIConfig:
    """p and q of the index; a larger eta_c keeps fewer, gamma scales the share that goes, beta bounds it;
    round_up: a whole number is retained before gamma scales what is left."""

    p: float = 0.5
    q: float = 1.0
    eta_c: float = 0.0
    gamma: float = 1.0
    beta: float = 0.9
    round_up: bool = False

    def __post_init__(self) -> None:
        if not (0 < self.p < self.q < math.inf):
            raise ValueError(f"expected 0 < p < q, both finite, got p={self.p}, q={self.q}")
        if not (0 <= self.eta_c < math.inf and 0 <= self.gamma < math.inf):
            raise ValueError(f"expected finite eta_c, gamma >= 0, got eta_c={self.eta_c}, gamma={self.gamma}")
        if not 0 <= self.beta <= 1:
            raise ValueError(f"expected beta from 0 to 1, got {self.beta}")


@overload
def pqi(w: Model, mask: None = None, p: float = 0.5, q: float = 1.0) -> dict[str, float]: ...
@overload
def pqi(w: Tensor | SparseTensor, mask: Tensor | None = None, p: float = 0.5, q: float = 1.0) -> float: ...
def pqi(
    w: Model | Tensor | SparseTensor, mask: Tensor | None = None, p: float = 0.5, q: float = 1.0
) -> dict[str, float] | float:
    """The PQ index of one weight (dense, perhaps with a mask, or sparse), or of every weight of a state."""
    if mask is not None and not isinstance(w, Tensor):
        raise ValueError(f"expected a mask with a dense tensor only, got one with a {type(w).__name__}")
    if isinstance(w, Model):
        return dict(zip(w.layout.names, pq(w.values, w.bitmap.offsets, p=p, q=q).pqi.tolist(), strict=True))
    if isinstance(w, SparseTensor):
        values = w.values
    elif mask is None:
        values = w.detach().reshape(-1)
    else:
        values = SparseTensor.from_dense(w, mask).values
    return float(pq(values, torch.tensor([0, values.numel()]), p=p, q=q).pqi)


def prune_counts(state: Model, cfg: PQIConfig = PQIConfig()) -> Tensor:  # noqa: B008 (frozen)
    """int64 [weights]: c of every weight. A weight that stores something keeps at least one entry."""
    index = pq(state.values, state.bitmap.offsets, p=cfg.p, q=cfg.q).pqi
    sick = [name for name, i in zip(state.layout.names, index.tolist(), strict=True) if math.isnan(i)]
    if sick:
        raise ValueError(f"expected finite numbers to prune, got others in {sick}")
    d, exponent = state.bitmap.counts, cfg.q / (cfg.q - cfg.p)
    kept = (1 + cfg.eta_c) ** -exponent * (1 - index) ** (cfg.p * exponent)  # r / d
    if cfg.round_up:
        c = torch.minimum(cfg.gamma * (d - (d * kept).ceil()), cfg.beta * d).floor().long()
    else:
        c = (d * (cfg.gamma * (1 - kept)).clamp(max=cfg.beta)).floor().long()
    return torch.minimum(c, d - 1).clamp(min=0)


def prune_pqi(
    state: Model,
    cfg: PQIConfig = PQIConfig(),  # noqa: B008 (frozen)
    target_density: float | None = None,
) -> Model:
    """`state` without its c smallest weights a layer.

    `target_density` (1 - s*) bounds it: a pruning that would pass it removes only what is left, the same
    share of c in every layer, and lands on the fewest entries whose density is not below the target.
    """
    c = prune_counts(state, cfg)
    if target_density is not None:
        check_density(target_density, "target_density")
        c = _share(c, state.bitmap.nnz - _fewest(target_density, state.bitmap.segments.numel))
    return state.with_pattern(without_smallest(state, c))


def keep_largest(state: Model, k: Tensor) -> Model:
    """The k[l] largest |w| of every weight l, or all that it stores; of equal ones the earlier go."""
    counts = state.bitmap.counts
    if k.shape != counts.shape or (k < 0).any():
        raise ValueError(f"expected a number from 0 on for each of {len(counts)} weights, got {k.tolist()}")
    return state.with_pattern(without_smallest(state, (counts - k).clamp(min=0)))


def without_smallest(state: Model, c: Tensor) -> Bitmap:
    """The pattern of `state` after dropping the c[l] smallest |w| of every weight l."""
    dropped = select(state.values, state.bitmap, c)
    return bitmaps.make(state.bitmap.words & ~dropped.words, state.bitmap.segments)


def _fewest(density: float, numel: int) -> int:
    """The smallest k with k / numel >= density, up to the rounding in 1 - s* (1 - 0.7 is above 0.3)."""
    return max(math.ceil((density - 1e-12) * numel), 0)


def _share(c: Tensor, budget: int) -> Tensor:
    """c scaled to a total of `budget`: rounded down, then one more where most was lost, ties in order."""
    counts, total, budget = c.tolist(), int(c.sum()), max(budget, 0)
    if total <= budget:
        return c
    shared = [n * budget // total for n in counts]
    by_loss = sorted(range(len(counts)), key=lambda i: -(counts[i] * budget % total))
    for i in by_loss[: budget - sum(shared)]:
        shared[i] += 1
    return torch.tensor(shared, dtype=torch.int64)
