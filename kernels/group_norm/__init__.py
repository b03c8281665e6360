"""Norms of many clients in one launch, forward and backward: batch norm, and norms of groups of channels.

    x^ = (x - mean) / sqrt(var + eps),   y = gamma x^ + beta,   relu of it

Images are [G, channels, height, width, B] (kernels/group.py). A batch norm's mean and variance are those of a
channel over pixels and samples, empty lanes left out; a group norm's those of a sample over the pixels of
`per_group` channels. Variances are divided by their number of values. gamma, beta and what a batch norm keeps
(mean and var, moved by `momentum`) lie in the clients' `rest`. In training `stats` has mean and 1 / sqrt(var
+ eps) of every set of values and lane, for the way back:

    d = dy where y > 0 (relu),   dbeta = sum d,   dgamma = sum d x^
    dx = (gamma d - mean of gamma d - x^ mean of gamma d x^) / sqrt(var + eps)
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from sparsefl.kernels import checks, registry
from sparsefl.kernels.group import BATCHES, Group

__all__ = ["Norm", "backward", "forward"]

_call = registry.bind(__name__)


@dataclass(frozen=True, kw_only=True)
class Norm:
    """Places are those in a client's `rest`; None: not there. per_group None: a batch norm."""

    channels: int
    eps: float
    per_group: int | None = None
    gamma: int | None = None
    beta: int | None = None
    mean: int | None = None
    var: int | None = None
    momentum: float = 0.0
    relu: bool = False

    def __post_init__(self) -> None:
        if self.per_group is not None and self.channels % self.per_group:
            raise ValueError(f"expected groups of as many of {self.channels} channels, got {self.per_group}")

    @property
    def sets(self) -> int:
        """Of values with a mean of their own, per client (and sample, of a group norm)."""
        return self.channels // (self.per_group or 1)

    def stats_shape(self, clients: int, batch: int) -> tuple[int, ...]:
        return clients, self.sets, 2, batch


def forward(
    group: Group,
    norm: Norm,
    arena: Tensor,
    x: Tensor,
    y: Tensor,
    stats: Tensor,
    order: Tensor,
    clock: Tensor,
    training: bool,
) -> None:
    """Writes y, and in training stats and what a batch norm keeps. order, clock: kernels/group_step."""
    _check(group, norm, arena, x, y, stats, order, clock)
    _call("norms_of_group_forward", x.device, group, norm, arena, x, y, stats, order, clock, training)


def backward(
    group: Group,
    norm: Norm,
    arena: Tensor,
    x: Tensor,
    y: Tensor,
    stats: Tensor,
    order: Tensor,
    clock: Tensor,
    dy: Tensor,
    gradients: Tensor,
    dx: Tensor | None,
    add: bool = False,
) -> None:
    """Writes the gradients of gamma and beta into `gradients` (an arena), and that of x into dx, or adds it.

    dx  None: nobody needs it; may be dy
    """
    _check(group, norm, arena, x, y, stats, order, clock)
    checks.same_shape(arena=arena, gradients=gradients)
    checks.same_shape(x=x, dy=dy, dx=dy if dx is None else dx)
    given = arena, x, y, stats, order, clock, dy, gradients, dx, add
    _call("norms_of_group_backward", x.device, group, norm, *given)


def _check(
    group: Group,
    norm: Norm,
    arena: Tensor,
    x: Tensor,
    y: Tensor,
    stats: Tensor,
    order: Tensor,
    clock: Tensor,
) -> None:
    checks.flat(arena=arena)
    checks.length(group.length, "numbers in the group's arena", arena=arena)
    checks.same_shape(x=x, y=y)
    checks.contiguous(x=x, y=y, stats=stats, order=order)
    checks.same_device(arena=arena, x=x, y=y, stats=stats, order=order, clock=clock)
    checks.dtype(torch.int32, order=order)
    if (
        x.dim() != 5
        or x.shape[0] != group.clients
        or x.shape[1] != norm.channels
        or x.shape[-1] not in BATCHES
    ):
        wanted = f"[{group.clients}, {norm.channels}, height, width, {' or '.join(map(str, BATCHES))}]"
        raise ValueError(f"expected x as {wanted}, got {tuple(x.shape)}")
    wanted_stats = norm.stats_shape(group.clients, x.shape[-1])
    if tuple(stats.shape) != wanted_stats:
        raise ValueError(f"expected stats {wanted_stats}, got {tuple(stats.shape)}")
    if order.dim() != 3 or order.shape[1:] != (group.clients, x.shape[-1]):
        raise ValueError(f"expected order [steps, {group.clients}, {x.shape[-1]}], got {tuple(order.shape)}")
