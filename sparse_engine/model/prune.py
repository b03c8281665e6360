"""PQI pruning (SAP): how compressible a layer is decides how many of its weights are pruned, smallest first.

    d = stored entries of the layer
    I = 1 - mean(|w|^p)^(1/p) / mean(|w|^q)^(1/q)
    r = d (1 + eta_c)^(-q/(q-p)) (1 - I)^(pq/(q-p))       to retain
    c = floor(d min(gamma (1 - r/d), beta)),   0 <= c < d   to prune

With `round_up`, ceil(r) stands for r, as in the authors' code: for gamma = 1 that is the same number.
Exactly the c smallest |w| are pruned, ties by position. Counts are computed in float64, so one may be 1 above
that of the authors' float32 code. The defaults are that code's values.
"""

import math
from dataclasses import dataclass
from typing import overload

import torch
from torch import Tensor

from sparse_engine.model.masks import check_density
from sparse_engine.model.model import Model
from sparse_engine.model.tensor import SparseTensor
from sparsefl.kernels.layout import Bitmap
from sparsefl.kernels.pqi import pqi as pq
from sparsefl.kernels.select import drop


@dataclass(frozen=True)
class PQIConfig:
    """p and q of the index. A larger eta_c keeps fewer, gamma scales the share to prune, beta bounds it.
    round_up: r is rounded up to a whole number before gamma scales the rest.

    >>> import sparse_engine as se
    >>> se.PQIConfig(gamma=0.9).beta
    0.9
    """

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
    """Return the PQ index of one weight as a float, or that of every weight of a model as {name: float}.

    w     a dense tensor, a SparseTensor, or a model
    mask  bool, in the shape of a dense `w`: only these entries count
    p, q  of the index, 0 < p < q

    The index is 0 where all entries are equally large, and near 1 where few hold nearly everything.

    >>> import torch, sparse_engine as se
    >>> se.pqi(torch.ones(4)), se.pqi(torch.tensor([1.0, 0.0, 0.0, 0.0]))
    (0.0, 0.75)
    """
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
    """Return c of every weight, int64 [weights]. A weight that stores something keeps at least one entry."""
    index = pq(state.values, state.bitmap.offsets, p=cfg.p, q=cfg.q).pqi
    sick = [name for name, i in zip(state.layout.names, index.tolist(), strict=True) if math.isnan(i)]
    if sick:
        raise ValueError(f"expected finite numbers to prune, got others in {sick}")
    return counts_of(index, state.bitmap.counts, cfg)


def counts_of(index: Tensor, d: Tensor, cfg: PQIConfig) -> Tensor:
    """Return c of weights with these PQ indices and numbers of stored entries."""
    exponent = cfg.q / (cfg.q - cfg.p)
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
    """Return `state` without the c smallest entries of each layer.

    state           a model
    cfg             constants of the formula that gives c
    target_density  1 - s*: a pruning that would pass it prunes the same share of c in every layer and ends
                    on the fewest entries whose density is not below the target

    >>> import torch, sparse_engine as se
    >>> model = se.compress(torch.nn.Linear(20, 50))
    >>> pruned = se.prune_pqi(model)
    >>> pruned.density < 1, se.prune_pqi(model, target_density=0.95).density
    (True, 0.95)
    """
    c = prune_counts(state, cfg)
    if target_density is not None:
        c = bounded(c, state.bitmap.nnz, state.bitmap.segments.numel, target_density)
    return state.with_pattern(without_smallest(state, c))


def bounded(c: Tensor, stored: int, numel: int, target_density: float) -> Tensor:
    """Return c of a model's weights, scaled down where pruning would pass the target."""
    check_density(target_density, "target_density")
    return _share(c, stored - _fewest(target_density, numel))


def keep_largest(state: Model, k: Tensor) -> Model:
    """Return `state` with only the k[l] largest |w| of every weight l.

    state  a model
    k      int64 [weights]; a weight that stores fewer keeps all. Of equal entries the earlier are dropped

    >>> import torch, sparse_engine as se
    >>> se.keep_largest(se.compress(torch.nn.Linear(20, 50)), torch.tensor([10])).bitmap.nnz
    10
    """
    counts = state.bitmap.counts
    if k.shape != counts.shape or (k < 0).any():
        raise ValueError(f"expected a number from 0 on for each of {len(counts)} weights, got {k.tolist()}")
    return state.with_pattern(without_smallest(state, (counts - k).clamp(min=0)))


def without_smallest(state: Model, c: Tensor) -> Bitmap:
    """Return the pattern of `state` after dropping the c[l] smallest |w| of every weight l."""
    return drop(state.values, state.bitmap, c)


def _fewest(density: float, numel: int) -> int:
    """Return the smallest k with k / numel >= density, but for rounding in 1 - s* (1 - 0.7 is above 0.3)."""
    return max(math.ceil((density - 1e-12) * numel), 0)


def _share(c: Tensor, budget: int) -> Tensor:
    """Return c scaled to the total `budget`: rounded down, one more where most was lost, ties in order."""
    counts, total, budget = c.tolist(), int(c.sum()), max(budget, 0)
    if total <= budget:
        return c
    shared = [n * budget // total for n in counts]
    by_loss = sorted(range(len(counts)), key=lambda i: -(counts[i] * budget % total))
    for i in by_loss[: budget - sum(shared)]:
        shared[i] += 1
    return torch.tensor(shared, dtype=torch.int64)
