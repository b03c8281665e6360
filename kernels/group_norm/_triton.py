"""Norms of a group: a program owns a set of values (a channel, or the channels of a group) of one client.

It walks the set three times forward (mean, variance, result) and twice backward; sums along pixels stay in
the lanes of the batch, and a batch norm adds up the lanes. No atomics, so sums repeat.
"""

import triton
import triton.language as tl
from torch import Tensor

from sparsefl.kernels import tile
from sparsefl.kernels.group import BATCHES, Group
from sparsefl.kernels.group_norm import Norm
from sparsefl.kernels.registry import register

_TILE = 1024  # numbers at a time


@triton.jit
def _rows(start, pixels, b, ROWS: tl.constexpr, B: tl.constexpr):
    """Places [ROWS, B] of pixels from `start` on, and which there are."""
    p = start + tl.arange(0, ROWS)
    return (p * B)[:, None] + b[None, :], (p < pixels)[:, None]


@triton.jit
def _valid(ORDER, CLOCK, g, clients, b, B: tl.constexpr):
    """Which lanes have a sample."""
    return tl.load(ORDER + (tl.load(CLOCK) * clients + g) * B + b) >= 0


@triton.jit
def _over_lanes(x, valid):
    """The sum of valid lanes, in every lane."""
    return tl.zeros_like(x) + tl.sum(tl.where(valid, x, 0.0), 0)


@triton.jit
def _parameter(ARENA, at, g, num_rest, c, default):
    """A client's number of channel c, or the default where there is none."""
    return tl.load(ARENA + at + g * num_rest + c, mask=at >= 0, other=default)


@tile.kernel
def _forward_kernel(
    X,
    ARENA,
    Y,
    STATS,
    ORDER,
    CLOCK,
    clients: tl.int64,
    channels: tl.int64,
    per_set: tl.int64,
    pixels: tl.int64,
    num_rest: tl.int64,
    gamma: tl.int64,
    beta: tl.int64,
    mean_at: tl.int64,
    var_at: tl.int64,
    training: tl.int64,
    relu: tl.int64,
    eps,
    momentum,
    B: tl.constexpr,
    ROWS: tl.constexpr,
    BATCH: tl.constexpr,
):
    program = tl.program_id(0).to(tl.int64)
    sets = channels // per_set
    g, s = program // sets, program % sets
    b = tl.arange(0, B)
    first, size = s * per_set, (per_set * pixels).to(tl.int32)
    offset = (g * channels + first) * pixels * B
    X, Y = tl.multiple_of(X + offset, 16), tl.multiple_of(Y + offset, 16)
    valid = _valid(ORDER, CLOCK, g, clients, b, B)
    n = tl.zeros([B], tl.float32) + size.to(tl.float32)
    if BATCH:
        n *= tl.maximum(tl.sum(valid.to(tl.int32), 0), 1).to(tl.float32)
    total = tl.zeros([ROWS, B], tl.float32)
    for start in range(0, size, ROWS):
        at, inside = _rows(start, size, b, ROWS, B)
        total += tl.load(X + at, mask=inside, other=0)
    mean = tl.sum(total, 0)
    if BATCH:
        mean = _over_lanes(mean, valid)
    mean = tl.div_rn(mean, n)
    total = tl.zeros([ROWS, B], tl.float32)
    for start in range(0, size, ROWS):
        at, inside = _rows(start, size, b, ROWS, B)
        d = tl.where(inside, tl.load(X + at, mask=inside, other=0) - mean[None, :], 0.0)
        total += d * d
    var = tl.sum(total, 0)
    if BATCH:
        var = _over_lanes(var, valid)
    var = tl.div_rn(var, n)
    if BATCH:
        if mean_at >= 0:
            M, V = ARENA + mean_at + g * num_rest + s, ARENA + var_at + g * num_rest + s
            old_mean, old_var = tl.load(M), tl.load(V)
            tl.debug_barrier()  # all warps have read what one of them writes
            if training != 0:
                has = tl.max(valid.to(tl.int32), 0) != 0
                count = tl.max(n, 0)
                new_mean, new_var = tl.max(mean, 0), tl.max(var, 0) * count / tl.maximum(count - 1, 1)
                tl.store(M, old_mean + momentum * (new_mean - old_mean), mask=has)
                tl.store(V, old_var + momentum * (new_var - old_var), mask=has)
            else:
                mean, var = tl.zeros_like(mean) + old_mean, tl.zeros_like(var) + old_var
    rstd = tl.div_rn(tl.full([B], 1.0, tl.float32), tl.sqrt_rn(var + eps))
    S = STATS + program * 2 * B
    tl.store(S + b, mean)
    tl.store(S + B + b, rstd)
    for start in range(0, size, ROWS):
        at, inside = _rows(start, size, b, ROWS, B)
        c = first + (start + tl.arange(0, ROWS)) // pixels.to(tl.int32)
        there = c < first + per_set
        scale = tl.load(ARENA + gamma + g * num_rest + c, mask=there & (gamma >= 0), other=1.0)
        shift = tl.load(ARENA + beta + g * num_rest + c, mask=there & (beta >= 0), other=0.0)
        x_hat = (tl.load(X + at, mask=inside, other=0) - mean[None, :]) * rstd[None, :]
        y = scale[:, None] * x_hat + shift[:, None]
        if relu != 0:
            y = tl.where(y < 0, 0.0, y)
        tl.store(Y + at, y, mask=inside)


@tile.kernel
def _backward_kernel(
    X,
    ARENA,
    Y,
    STATS,
    ORDER,
    CLOCK,
    DY,
    D,
    DX,
    clients: tl.int64,
    channels: tl.int64,
    per_set: tl.int64,
    pixels: tl.int64,
    num_rest: tl.int64,
    gamma: tl.int64,
    beta: tl.int64,
    relu: tl.int64,
    wanted: tl.int64,
    add: tl.int64,
    B: tl.constexpr,
    ROWS: tl.constexpr,
    BATCH: tl.constexpr,
):
    program = tl.program_id(0).to(tl.int64)
    sets = channels // per_set
    g, s = program // sets, program % sets
    b = tl.arange(0, B)
    area = pixels.to(tl.int32)
    valid = _valid(ORDER, CLOCK, g, clients, b, B)
    mean, rstd = tl.load(STATS + program * 2 * B + b), tl.load(STATS + program * 2 * B + B + b)
    n = tl.zeros([B], tl.float32) + (per_set * pixels).to(tl.float32)
    if BATCH:
        n *= tl.maximum(tl.sum(valid.to(tl.int32), 0), 1).to(tl.float32)
    sum_d = tl.zeros([B], tl.float32)  # of gamma d, and of gamma d x^
    sum_h = tl.zeros([B], tl.float32)
    for i in range(per_set.to(tl.int32)):
        c = s * per_set + i
        offset = (g * channels + c) * pixels * B
        total_d = tl.zeros([ROWS, B], tl.float32)
        total_h = tl.zeros([ROWS, B], tl.float32)
        for start in range(0, area, ROWS):
            at, inside = _rows(start, area, b, ROWS, B)
            d = tl.load(tl.multiple_of(DY + offset, 16) + at, mask=inside, other=0)
            if relu != 0:
                d = tl.where(tl.load(tl.multiple_of(Y + offset, 16) + at, mask=inside, other=0) > 0, d, 0.0)
            x = tl.load(tl.multiple_of(X + offset, 16) + at, mask=inside, other=0)
            total_d += d
            total_h += d * (x - mean[None, :]) * rstd[None, :]
        lanes_d, lanes_h = tl.sum(total_d, 0), tl.sum(total_h, 0)
        scale = _parameter(ARENA, gamma, g, num_rest, c, 1.0)
        tl.store(D + gamma + g * num_rest + c, tl.sum(lanes_h, 0), mask=gamma >= 0)
        tl.store(D + beta + g * num_rest + c, tl.sum(lanes_d, 0), mask=beta >= 0)
        sum_d += scale * lanes_d
        sum_h += scale * lanes_h
    if BATCH:
        sum_d, sum_h = _over_lanes(sum_d, valid), _over_lanes(sum_h, valid)
    sum_d, sum_h = tl.div_rn(sum_d, n), tl.div_rn(sum_h, n)
    if wanted != 0:
        for i in range(per_set.to(tl.int32)):
            c = s * per_set + i
            offset = (g * channels + c) * pixels * B
            scale = _parameter(ARENA, gamma, g, num_rest, c, 1.0)
            for start in range(0, area, ROWS):
                at, inside = _rows(start, area, b, ROWS, B)
                d = tl.load(tl.multiple_of(DY + offset, 16) + at, mask=inside, other=0)
                if relu != 0:
                    y = tl.load(tl.multiple_of(Y + offset, 16) + at, mask=inside, other=0)
                    d = tl.where(y > 0, d, 0.0)
                x = tl.load(tl.multiple_of(X + offset, 16) + at, mask=inside, other=0)
                x_hat = (x - mean[None, :]) * rstd[None, :]
                dx = (scale * d - sum_d[None, :] - x_hat * sum_h[None, :]) * rstd[None, :]
                dx = tl.where(valid[None, :], dx, 0.0)
                to = tl.multiple_of(DX + offset, 16) + at
                if add != 0:
                    dx += tl.load(to, mask=inside, other=0)
                tl.store(to, dx, mask=inside)


_CONSTANTS = {
    (b, batch): {"B": b, "ROWS": _TILE // b, "BATCH": batch} for b in BATCHES for batch in (True, False)
}
_forward = {
    key: tile.Config(
        "norms_of_group_forward",
        _forward_kernel,
        "*fp32 *fp32 *fp32 *fp32 *i32 *i64" + " i64" * 11 + " fp32 fp32",
        constants,
        fused=False,  # or two lanes that add the same numbers get different last bits (kernels/drift)
    )
    for key, constants in _CONSTANTS.items()
}
_backward = {
    key: tile.Config(
        "norms_of_group_backward",
        _backward_kernel,
        "*fp32 *fp32 *fp32 *fp32 *i32 *i64 *fp32 *fp32 *fp32" + " i64" * 10,
        constants,
        fused=False,
        registers=96,  # left to itself, the assembler spills a few to have more warps
    )
    for key, constants in _CONSTANTS.items()
}


def _places(group: Group, *places: int | None) -> list[int]:
    """Of client 0 in the arena; -1: none."""
    return [-1 if place is None else group.bitmap.nnz + place for place in places]


def _sizes(group: Group, norm: Norm, x: Tensor) -> tuple[int, ...]:
    pixels = x.shape[2] * x.shape[3]
    return group.clients, norm.channels, norm.per_group or 1, pixels, group.network.num_rest


@register("norms_of_group_forward", "triton")
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
    tile.float32(arena=arena, x=x, y=y, stats=stats)
    _forward[x.shape[-1], norm.per_group is None].launch(
        group.clients * norm.sets,
        *(x, arena, y, stats, order, clock),
        *_sizes(group, norm, x),
        *_places(group, norm.gamma, norm.beta, norm.mean, norm.var),
        *(int(training), int(norm.relu), norm.eps, norm.momentum),
    )


@register("norms_of_group_backward", "triton")
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
    tile.float32(arena=arena, x=x, y=y, dy=dy, gradients=gradients)
    _backward[x.shape[-1], norm.per_group is None].launch(
        group.clients * norm.sets,
        *(x, arena, y, stats, order, clock, dy, gradients, dy if dx is None else dx),
        *_sizes(group, norm, x),
        *_places(group, norm.gamma, norm.beta),
        *(int(norm.relu), int(dx is not None), int(add)),
    )
