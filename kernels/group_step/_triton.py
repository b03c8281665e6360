"""Batches, loss and step of a group. Grids: (client, pixels) for batches, clients for the loss, runs for SGD.

The first sample of a batch is never missing unless the whole batch is: that tells whether a client trains.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from sparsefl.kernels import tile
from sparsefl.kernels.group import BATCHES, CHUNK
from sparsefl.kernels.registry import register

_TILE = 1024  # numbers of a batch per program
_LANES = tl.constexpr(BATCHES[-1])
_CHUNK = tl.constexpr(CHUNK)


@tile.kernel
def _batch_kernel(
    DATA,
    SCALE,
    ORDER,
    CLOCK,
    X,
    MOVES,
    clients: tl.int64,
    channels: tl.int64,
    height: tl.int64,
    width: tl.int64,
    moved: tl.int64,
    B: tl.constexpr,
    PIXELS: tl.constexpr,
):
    height, width = height.to(tl.int32), width.to(tl.int32)
    pixels = channels.to(tl.int32) * height * width
    tiles = tl.cdiv(pixels, PIXELS)
    program = tl.program_id(0)
    g = (program // tiles).to(tl.int64)
    p = program % tiles * PIXELS + tl.arange(0, PIXELS)
    b = tl.arange(0, B)
    t = tl.load(CLOCK + 1)
    if program == 0:
        tl.store(CLOCK, t)
    at = (t * clients + g) * B + b
    sample = tl.load(ORDER + at)
    c, h, w = (p // (height * width))[:, None], (p // width % height)[:, None], (p % width)[:, None]
    inside = (p < pixels)[:, None] & (sample >= 0)[None, :]
    can_move = tl.full([B], 0, tl.int32) + moved.to(tl.int32) != 0
    row = tl.load(MOVES + at * 3, mask=can_move, other=0)
    column = tl.load(MOVES + at * 3 + 1, mask=can_move, other=0)
    mirrored = tl.load(MOVES + at * 3 + 2, mask=can_move, other=0)
    h = h + row[None, :]
    w = tl.where(mirrored[None, :] != 0, width - 1 - w, w) + column[None, :]
    seen = inside & (h >= 0) & (h < height) & (w >= 0) & (w < width)
    place = sample.to(tl.int64)[None, :] * pixels + (c * height + h) * width + w
    x = tl.load(DATA + place, mask=seen, other=0).to(tl.float32)
    mean = tl.load(SCALE + c, mask=(p < pixels)[:, None], other=0)
    std = tl.load(SCALE + channels + c, mask=(p < pixels)[:, None], other=1)
    x = tl.where(inside, tl.div_rn(x - mean, std + tl.zeros_like(x)), 0.0)
    X = tl.multiple_of(X + g * pixels * B, 16)
    tl.store(X + (p[:, None] * B + b[None, :]), x, mask=(p < pixels)[:, None])


_gather = {
    (dtype, b): tile.Config(
        "group_gather",
        _batch_kernel,
        f"{name} *fp32 *i32 *i64 *fp32 *i32" + " i64" * 5,
        {"B": b, "PIXELS": _TILE // b},
        fused=False,
    )
    for dtype, name in ((torch.uint8, "*u8"), (torch.float32, "*fp32"))
    for b in BATCHES
}


@register("group_gather", "triton")
def group_gather(
    data: Tensor, scale: Tensor, order: Tensor, clock: Tensor, x: Tensor, moves: Tensor | None
) -> None:
    tile.float32(x=x, scale=scale)
    clients, *shape, batch = x.shape
    programs = clients * triton.cdiv(data[0].numel(), _TILE // batch)
    given = data, scale, order, clock, x, order if moves is None else moves
    _gather[data.dtype, batch].launch(programs, *given, clients, *shape, int(moves is not None))


@triton.jit
def _labels(LABELS, ORDER, CLOCK, g, clients, batch):
    """Labels of a client's batch, and which lanes have one."""
    b = tl.arange(0, _LANES)
    sample = tl.load(ORDER + (tl.load(CLOCK) * clients + g) * batch + b, mask=b < batch, other=-1)
    valid = sample >= 0
    return tl.load(LABELS + sample, mask=valid, other=0), valid


@triton.jit
def _largest(Z, classes, batch, inside):
    """The largest logit of every lane, and its class: the first one of equals."""
    b = tl.arange(0, _LANES)
    most = tl.load(Z + b, mask=inside, other=0)
    first = tl.full([_LANES], 0, tl.int32)
    for k in range(1, classes):
        z = tl.load(Z + k * batch + b, mask=inside, other=0)
        better = (z > most) | ((z != z) & (most == most))
        most, first = tl.where(better, z, most), tl.where(better, k, first)
    return most, first


@triton.jit
def _scale(S, first, end, max_norm):
    """What a client's gradient is scaled by: its norm from the sums of its runs, in order of the lanes."""
    i = tl.arange(0, _LANES)
    total = tl.zeros([_LANES], tl.float64)
    for at in range(first, end, _LANES):
        total += tl.load(S + at + i, mask=at + i < end, other=0)
    norm = tl.sqrt(tl.sum(total, 0)) + 1e-6
    return tl.where(norm > max_norm, max_norm.to(tl.float64) / norm, 1.0).to(tl.float32)


@tile.kernel
def _loss_kernel(Z, LABELS, ORDER, CLOCK, LOSSES, D, clients: tl.int64, classes: tl.int64, batch: tl.int64):
    g = tl.program_id(0).to(tl.int64)
    label, valid = _labels(LABELS, ORDER, CLOCK, g, clients, batch)
    b = tl.arange(0, _LANES)
    Z += g * classes * batch
    D += g * classes * batch
    most, _ = _largest(Z, classes.to(tl.int32), batch, valid)
    total = tl.full([_LANES], 0, tl.float32)
    mine = tl.full([_LANES], 0, tl.float32)
    for k in range(classes.to(tl.int32)):
        z = tl.load(Z + k * batch + b, mask=valid, other=0) - most
        total += tl.exp(z)
        mine = tl.where(label == k, z, mine)
    count = tl.maximum(tl.sum(valid.to(tl.int32), 0), 1).to(tl.float32)
    for k in range(classes.to(tl.int32)):
        z = tl.load(Z + k * batch + b, mask=valid, other=0) - most
        d = (tl.exp(z) / total - tl.where(label == k, 1.0, 0.0)) / count
        tl.store(D + k * batch + b, tl.where(valid, d, 0.0), mask=b < batch)
    tl.store(LOSSES + tl.load(CLOCK) * clients + g, tl.sum(tl.where(valid, tl.log(total) - mine, 0.0), 0))


@tile.kernel
def _hits_kernel(Z, LABELS, ORDER, CLOCK, N, clients: tl.int64, classes: tl.int64, batch: tl.int64):
    g = tl.program_id(0).to(tl.int64)
    label, valid = _labels(LABELS, ORDER, CLOCK, g, clients, batch)
    _, first = _largest(Z + g * classes * batch, classes.to(tl.int32), batch, valid)
    right = tl.sum((valid & (first == label)).to(tl.int32), 0)
    t = tl.load(CLOCK)
    tl.store(N + t * clients + g, right)
    if tl.program_id(0) == 0:
        tl.store(CLOCK + 1, t + 1)


_loss = tile.Config(
    "group_loss", _loss_kernel, "*fp32 *i32 *i32 *i64 *fp32 *fp32 i64 i64 i64", {}, 2, fused=False
)
_hits = tile.Config("group_hits", _hits_kernel, "*fp32 *i32 *i32 *i64 *i32 i64 i64 i64", {})


@register("group_loss", "triton")
def group_loss(
    logits: Tensor, labels: Tensor, order: Tensor, clock: Tensor, losses: Tensor, dz: Tensor
) -> None:
    tile.float32(logits=logits)
    clients, classes, batch = logits.shape[0], logits.shape[1], logits.shape[-1]
    _loss.launch(clients, logits, labels, order, clock, losses, dz, clients, classes, batch)


@register("group_hits", "triton")
def group_hits(logits: Tensor, labels: Tensor, order: Tensor, clock: Tensor, found: Tensor) -> None:
    tile.float32(logits=logits)
    clients, classes, batch = logits.shape[0], logits.shape[1], logits.shape[-1]
    _hits.launch(clients, logits, labels, order, clock, found, clients, classes, batch)


@tile.kernel
def _squares_kernel(G, RUNS, S):
    run = tl.program_id(0).to(tl.int64)
    lo, hi = tl.load(RUNS + run * 5), tl.load(RUNS + run * 5 + 1)
    i = lo + tl.arange(0, _CHUNK)
    g = tl.load(G + i, mask=i < hi, other=0).to(tl.float64)
    tl.store(S + run, tl.sum(g * g, 0))


_squares = tile.Config("group_squares", _squares_kernel, "*fp32 *i64 *fp64", {}, tile.RUN_WARPS, fused=False)


@register("group_squares", "triton")
def group_squares(g: Tensor, runs: Tensor, sums: Tensor) -> None:
    tile.float32(g=g)
    _squares.launch(len(runs), g, runs, sums)


@tile.kernel
def _sgd_kernel(
    W,
    G,
    U,
    RUNS,
    ORDER,
    CLOCK,
    NUMBERS,
    S,
    clients: tl.int64,
    batch: tl.int64,
    MOMENTUM: tl.constexpr,
    CLIPPED: tl.constexpr,
):
    RUNS += tl.program_id(0).to(tl.int64) * 5
    lo, hi, client = tl.load(RUNS), tl.load(RUNS + 1), tl.load(RUNS + 2)
    rate, momentum, decay = tl.load(NUMBERS), tl.load(NUMBERS + 1), tl.load(NUMBERS + 2)
    t = tl.load(CLOCK)
    i = lo + tl.arange(0, _CHUNK)
    inside = (i < hi) & (tl.load(ORDER + (t * clients + client) * batch) >= 0)
    w = tl.load(W + i, mask=inside, other=0)
    d = tl.load(G + i, mask=inside, other=0)
    if CLIPPED:
        d *= _scale(S, tl.load(RUNS + 3), tl.load(RUNS + 4), tl.load(NUMBERS + 3))
    d += decay * w
    if MOMENTUM:
        d = momentum * tl.load(U + i, mask=inside, other=0) + d
        tl.store(U + i, d, mask=inside)
    tl.store(W + i, w - rate * d, mask=inside)
    if tl.program_id(0) == 0:
        tl.store(CLOCK + 1, t + 1)


_sgd = {
    (momentum, clipped): tile.Config(
        "group_sgd_",
        _sgd_kernel,
        "*fp32 *fp32 *fp32 *i64 *i32 *i64 *fp32 *fp64 i64 i64",
        {"MOMENTUM": momentum, "CLIPPED": clipped},
        tile.RUN_WARPS,
        registers=96 if clipped else None,
    )
    for momentum in (True, False)
    for clipped in (True, False)
}


@register("group_sgd_", "triton")
def group_sgd_(
    w: Tensor,
    g: Tensor,
    u: Tensor | None,
    runs: Tensor,
    order: Tensor,
    clock: Tensor,
    numbers: Tensor,
    sums: Tensor | None,
) -> None:
    tile.float32(w=w, numbers=numbers)
    given = w, g, w if u is None else u, runs, order, clock, numbers
    none = runs.view(torch.float64).view(-1)  # in place of sums that nobody reads
    config = _sgd[u is not None, sums is not None]
    config.launch(len(runs), *given, none if sums is None else sums, order.shape[1], order.shape[2])
