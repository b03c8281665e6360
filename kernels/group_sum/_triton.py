"""Sums, means and gates of a group. A program takes 64 pieces of 16 lanes, one after the other."""

from math import prod

import torch
import triton
import triton.language as tl
from torch import Tensor

from sparsefl.kernels import tile
from sparsefl.kernels.group import Layer
from sparsefl.kernels.registry import register

_RUN = 2048  # numbers of a program: 8 per thread
_LANES, _PIECES = tl.constexpr(16), tl.constexpr(64)


@triton.jit
def _pieces(batch):
    """Pixel [64, 1], and place of its 16 lanes in it [64, 16]."""
    piece = tl.program_id(0) * _PIECES + tl.arange(0, _PIECES)
    parts = (batch // _LANES).to(tl.int32)
    lanes = (piece % parts * _LANES)[:, None] + tl.arange(0, _LANES)[None, :]
    return piece // parts, lanes


@triton.jit
def _at(X, pixel, batch, lanes):
    """Pointers to a pixel's lanes."""
    return X + (tl.multiple_of(pixel.to(tl.int64) * batch, 16)[:, None] + lanes)


@tile.kernel
def _add_kernel(A, C, Y, n: tl.int64, two: tl.int64, relu: tl.int64, RUN: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * RUN + tl.arange(0, RUN)
    inside = i < n
    y = tl.load(A + i, mask=inside, other=0)
    if two != 0:
        y += tl.load(C + i, mask=inside, other=0)
    if relu != 0:
        y = tl.where(y < 0, 0.0, y)
    tl.store(Y + i, y, mask=inside)


@tile.kernel
def _add_gradient_kernel(DY, Y, DX, n: tl.int64, relu: tl.int64, more: tl.int64, RUN: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * RUN + tl.arange(0, RUN)
    inside = i < n
    d = tl.load(DY + i, mask=inside, other=0)
    if relu != 0:
        d = tl.where(tl.load(Y + i, mask=inside, other=0) > 0, d, 0.0)
    if more != 0:
        d += tl.load(DX + i, mask=inside, other=0)
    tl.store(DX + i, d, mask=inside)


_RUNS = {"RUN": _RUN}
_add = tile.Config("group_add", _add_kernel, "*fp32 *fp32 *fp32 i64 i64 i64", _RUNS, 8)
_add_gradient = tile.Config(
    "group_add_gradient", _add_gradient_kernel, "*fp32 *fp32 *fp32 i64 i64 i64", _RUNS, 8
)


@register("group_add", "triton")
def group_add(a: Tensor, b: Tensor | None, y: Tensor, relu: bool) -> None:
    tile.float32(a=a, y=y)
    other = a if b is None else b
    _add.launch(triton.cdiv(a.numel(), _RUN), a, other, y, a.numel(), int(b is not None), int(relu))


@register("group_add_gradient", "triton")
def group_add_gradient(dy: Tensor, y: Tensor | None, dx: Tensor, more: bool) -> None:
    tile.float32(dy=dy, dx=dx)
    n, value = dy.numel(), dy if y is None else y
    _add_gradient.launch(triton.cdiv(n, _RUN), dy, value, dx, n, int(y is not None), int(more))


@tile.kernel
def _mean_kernel(
    X,
    Y,
    planes: tl.int64,  # of all clients
    height: tl.int64,
    width: tl.int64,
    rows: tl.int64,  # of y
    columns: tl.int64,
    down: tl.int64,
    across: tl.int64,
    batch: tl.int64,
):
    p, lanes = _pieces(batch)
    planes, height, width = planes.to(tl.int32), height.to(tl.int32), width.to(tl.int32)
    rows, columns = rows.to(tl.int32), columns.to(tl.int32)
    down, across = down.to(tl.int32), across.to(tl.int32)
    inside = (p < planes * rows * columns)[:, None]
    plane, i, j = p // (rows * columns), p // columns % rows, p % columns
    first = (plane * height + i * down) * width + j * across
    total = tl.zeros([_PIECES, _LANES], tl.float32)
    for q in range(down * across):
        at = first + q // across * width + q % across
        total += tl.load(_at(X, at, batch, lanes), mask=inside, other=0)
    tl.store(_at(Y, p, batch, lanes), total / (down * across).to(tl.float32), mask=inside)


@tile.kernel
def _mean_gradient_kernel(
    DY,
    DX,
    planes: tl.int64,
    height: tl.int64,
    width: tl.int64,
    rows: tl.int64,
    columns: tl.int64,
    down: tl.int64,
    across: tl.int64,
    more: tl.int64,
    batch: tl.int64,
):
    p, lanes = _pieces(batch)
    planes, height, width = planes.to(tl.int32), height.to(tl.int32), width.to(tl.int32)
    rows, columns = rows.to(tl.int32), columns.to(tl.int32)
    down, across = down.to(tl.int32), across.to(tl.int32)
    inside = (p < planes * height * width)[:, None]
    plane, i, j = p // (height * width), p // width % height // down, p % width // across
    of_window = inside & ((i < rows) & (j < columns))[:, None]
    at = (plane * rows + i) * columns + j
    d = tl.load(_at(DY, at, batch, lanes), mask=of_window, other=0) / (down * across).to(tl.float32)
    to = _at(DX, p, batch, lanes)
    if more != 0:
        d += tl.load(to, mask=inside, other=0)
    tl.store(to, d, mask=inside)


@tile.kernel
def _opened_kernel(
    DY,
    GATE,
    DZ,
    planes: tl.int64,
    height: tl.int64,  # of z
    width: tl.int64,
    rows: tl.int64,  # of y
    columns: tl.int64,
    down: tl.int64,
    across: tl.int64,
    batch: tl.int64,
):
    p, lanes = _pieces(batch)
    planes, height, width = planes.to(tl.int32), height.to(tl.int32), width.to(tl.int32)
    rows, columns = rows.to(tl.int32), columns.to(tl.int32)
    down, across = down.to(tl.int32), across.to(tl.int32)
    inside = (p < planes * height * width)[:, None]
    plane, h, w = p // (height * width), p // width % height, p % width
    i, j = h // down, w // across
    of_window = inside & ((i < rows) & (j < columns))[:, None]
    at = (plane * rows + i) * columns + j
    place = tl.load(_at(GATE, at, batch, lanes), mask=of_window, other=255).to(tl.int32)
    mine = h % down * across + w % across
    d = tl.load(_at(DY, at, batch, lanes), mask=of_window, other=0)
    tl.store(_at(DZ, p, batch, lanes), tl.where(place == mine[:, None], d, 0.0), mask=inside)


_mean = tile.Config("group_mean", _mean_kernel, "*fp32 *fp32" + " i64" * 8, {})
_mean_gradient = tile.Config("group_mean_gradient", _mean_gradient_kernel, "*fp32 *fp32" + " i64" * 9, {})
_opened = tile.Config("group_opened", _opened_kernel, "*fp32 *u8 *fp32" + " i64" * 8, {})


def _programs(x: torch.Tensor) -> int:
    if x.numel() // _LANES.value >= 1 << 31:
        raise ValueError(f"expected images of fewer than 2^35 numbers, got {tuple(x.shape)}")
    return triton.cdiv(x.numel(), _LANES.value * _PIECES.value)


@register("group_mean", "triton")
def group_mean(x: Tensor, window: tuple[int, int], y: Tensor) -> None:
    tile.float32(x=x, y=y)
    planes, height, width, lanes = prod(x.shape[:2]), *x.shape[2:]
    _mean.launch(_programs(y), x, y, planes, height, width, *y.shape[2:4], *window, lanes)


@register("group_mean_gradient", "triton")
def group_mean_gradient(dy: Tensor, window: tuple[int, int], dx: Tensor, more: bool) -> None:
    tile.float32(dy=dy, dx=dx)
    planes, height, width, lanes = prod(dx.shape[:2]), *dx.shape[2:]
    sizes = planes, height, width, *dy.shape[2:4], *window
    _mean_gradient.launch(_programs(dx), dy, dx, *sizes, int(more), lanes)


@register("group_opened", "triton")
def group_opened(layer: Layer, dy: Tensor, gate: Tensor, dz: Tensor) -> None:
    tile.float32(dy=dy, dz=dz)
    planes, height, width, lanes = prod(dz.shape[:2]), *dz.shape[2:]
    sizes = planes, height, width, *layer.pooled, *layer.pool
    _opened.launch(_programs(dz), dy, gate, dz, *sizes, lanes)
