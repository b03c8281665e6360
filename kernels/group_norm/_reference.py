"""Plain torch, a client at a time: the specification of a group's norms."""

import torch
from torch import Tensor

from sparsefl.kernels.group import Group
from sparsefl.kernels.group_norm import Norm
from sparsefl.kernels.registry import register


def _at(group: Group, arena: Tensor, g: int, place: int | None, n: int) -> Tensor | None:
    """A client's numbers in its `rest`, as a view."""
    if place is None:
        return None
    lo = group.bitmap.nnz + g * group.network.num_rest + place
    return arena[lo : lo + n]


def _column(x: Tensor | None, default: float, like: Tensor) -> Tensor:
    """[channels, 1, 1, 1]"""
    column = torch.full((like.shape[1],), default, dtype=like.dtype) if x is None else x.to(like.dtype)
    return column.view(-1, 1, 1, 1)


@register("norms_of_group_forward", "reference")
def group_norm_forward(
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
    for g in range(group.clients):
        mean, rstd = _statistics(group, norm, arena, g, x[g], order[int(clock[0]), g] >= 0, training)
        stats[g, :, 0], stats[g, :, 1] = mean, rstd
        x_hat = _normalised(norm, x[g], mean, rstd)
        gamma = _column(_at(group, arena, g, norm.gamma, norm.channels), 1.0, x)
        beta = _column(_at(group, arena, g, norm.beta, norm.channels), 0.0, x)
        out = gamma * x_hat + beta
        y[g] = out.relu() if norm.relu else out


def _statistics(
    group: Group, norm: Norm, arena: Tensor, g: int, x: Tensor, valid: Tensor, training: bool
) -> tuple[Tensor, Tensor]:
    """Mean and 1 / sqrt(var + eps), [sets, B]."""
    if norm.per_group is not None:
        rows = x.reshape(norm.sets, -1, x.shape[-1])
        var, mean = torch.var_mean(rows, 1, correction=0)
        return mean, (var + norm.eps).rsqrt()
    kept = _at(group, arena, g, norm.mean, norm.channels), _at(group, arena, g, norm.var, norm.channels)
    if not training and kept[0] is not None and kept[1] is not None:
        mean, var = kept[0].to(x.dtype), kept[1].to(x.dtype)
    elif not valid.any():
        mean, var = torch.zeros(len(x), dtype=x.dtype), torch.ones(len(x), dtype=x.dtype)
    else:
        rows = x[..., valid].reshape(len(x), -1)
        var, mean = torch.var_mean(rows, 1, correction=0)
        if training and kept[0] is not None and kept[1] is not None:
            n = rows.shape[1]
            unbiased = var * n / max(n - 1, 1)
            for old, new in zip(kept, (mean, unbiased), strict=True):
                old.lerp_(new.to(old.dtype), norm.momentum)
    rstd = (var + norm.eps).rsqrt()
    return mean[:, None].expand(-1, x.shape[-1]), rstd[:, None].expand(-1, x.shape[-1])


def _normalised(norm: Norm, x: Tensor, mean: Tensor, rstd: Tensor) -> Tensor:
    sets = x.reshape(norm.sets, -1, x.shape[-1])
    return ((sets - mean[:, None]) * rstd[:, None]).view(x.shape)


@register("norms_of_group_backward", "reference")
def group_norm_backward(
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
    add: bool,
) -> None:
    for g in range(group.clients):
        valid = order[int(clock[0]), g] >= 0
        d = torch.where(y[g] > 0, dy[g], 0.0) if norm.relu else dy[g]
        mean, rstd = stats[g, :, 0], stats[g, :, 1]
        x_hat = _normalised(norm, x[g], mean, rstd)
        sums = {norm.gamma: (d * x_hat).sum((1, 2, 3)), norm.beta: d.sum((1, 2, 3))}
        for place, total in sums.items():
            to = _at(group, gradients, g, place, norm.channels)
            if to is not None:
                to.copy_(total)
        if dx is None:
            continue
        gamma = _column(_at(group, arena, g, norm.gamma, norm.channels), 1.0, x)
        scaled = (gamma * d).reshape(norm.sets, -1, x.shape[-1])
        hat = x_hat.reshape(scaled.shape)
        axes, n = (1,), scaled.shape[1]
        if norm.per_group is None:
            axes, n = (1, 2), scaled.shape[1] * max(int(valid.sum()), 1)
        inner = scaled - scaled.sum(axes, keepdim=True) / n - hat * (scaled * hat).sum(axes, keepdim=True) / n
        found = (inner * rstd[:, None]).view(x[g].shape)
        found = torch.where(valid, found, 0.0)
        dx[g] = dx[g] + found if add else found
