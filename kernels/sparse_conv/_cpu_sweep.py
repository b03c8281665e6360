"""Sweeps: the weights of a native convolution in the order in which a pass meets them.

This file decides how many input channels make a block, and builds the order.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import ceil
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparsefl.kernels import bitmap, memory
from sparsefl.kernels.layout import Bitmap
from sparsefl.kernels.native import extension, pointer
from sparsefl.kernels.sparse_conv._cpu_geometry import (
    channels_in_l1,
    few,
    is_linear,
    tap_bytes,
    tiles_together,
)
from sparsefl.kernels.sparse_conv._cpu_planes import Axis, Planes
from sparsefl.kernels.sparse_conv.conv import Conv


@dataclass(frozen=True)
class Sweep:
    """The weights of one pass, as ConvWeights (csrc/layers/conv.h). One for all batches with these lanes."""

    rows: int
    block: int  # channels
    group: int  # rows
    starts: Tensor
    order: Tensor
    offsets: Tensor
    at: Tensor | None  # forward: the packed position of each visit's first weight
    index: Tensor | None  # transposed: the packed position of each weight

    @cached_property
    def native(self) -> Any:
        return extension().ConvWeights(
            rows=self.rows,
            visits=self.order.numel(),
            starts=pointer(self.starts, torch.int32),
            order=pointer(self.order, torch.int32),
            at=0 if self.at is None else pointer(self.at, torch.int32),
            offsets=pointer(self.offsets, torch.int32),
        )


@dataclass(frozen=True)
class DenseSweep:
    """A pass over the whole weight, zeros where nothing is stored: ConvDense, csrc/layers/conv.h."""

    rows: int
    taps: int
    block: int
    offsets: Tensor
    tiles: int  # of a row that the weight gradient takes together
    gradient_block: int
    make_index: Callable[[], Tensor]

    @cached_property
    def index(self) -> Tensor:
        """int32 [rows in threes, taps, 3]: the packed position of each weight; -1 where none is stored. Made
        when first asked for: it is as large as the weight, and the weight gradient does without."""
        return self.make_index()

    @cached_property
    def native(self) -> Any:
        return self._native(self.block)

    @cached_property
    def native_gradient(self) -> Any:
        return self._native(self.gradient_block)

    def _native(self, block: int) -> Any:
        offsets = pointer(self.offsets, torch.int32)
        return extension().ConvDense(rows=self.rows, taps=self.taps, block=block, offsets=offsets)


def make_sweep(
    conv: Conv, planes: Planes, direction: str, axes: Sequence[Axis], phase: int, dense: bool
) -> Sweep | DenseSweep:
    """The weights of a pass, in blocks of channels; made once for all batch sizes that share the lanes."""
    key = (direction, phase, replace(planes, batch=0, chunks=0), extension().isa(), dense)
    make: Callable[..., Sweep | DenseSweep] = _dense_sweep if dense else _sparse_sweep
    return conv.plans.part(key, lambda: make(conv, planes, direction, axes))


def _sparse_sweep(conv: Conv, planes: Planes, direction: str, axes: Sequence[Axis]) -> Sweep:
    """The stored weights, by visits of a row to a block of channels."""
    transposed = direction != "forward"
    rows = conv.in_channels if transposed else conv.out_channels
    pointers, indices, *positions = (
        bitmap.transpose(conv.bitmap, conv.out_channels) if transposed else bitmap.csr(conv.bitmap, rows)
    )
    taps = tap_bytes(conv.kernel, planes, axes)
    pattern = extension().ConvPattern(
        transposed=transposed,
        rows=rows,
        taps=conv.taps,
        pointers=pointer(pointers, torch.int32),
        indices=pointer(indices, torch.int32),
        positions=pointer(positions[0], torch.int32) if transposed else 0,
        taps_at=taps.ctypes.data,
    )
    block = _block(conv, planes, taps)
    group = extension().conv_group()
    visits = ceil(planes.channels / block) * rows
    starts, order = (memory.plain(visits + extra, torch.int32) for extra in (1, 0))
    into = pointer(starts, torch.int32), pointer(order, torch.int32)
    how = planes.channels, block, group
    count = extension().conv_count(pattern, *how, *into)
    offsets, index = (memory.plain(count, torch.int32) for _ in range(2))
    into += pointer(offsets, torch.int32), pointer(index, torch.int32)
    extension().conv_fill(pattern, *how, planes.itemsize * planes.channel_size, *into)
    if transposed:
        return Sweep(rows, block, group, starts, order, offsets, None, index)
    # a visit's weights lie side by side in the packed values
    padded = torch.cat([index, index.new_zeros(1)])  # an empty visit may start at the end
    at = padded[starts[:-1].long()]
    return Sweep(rows, block, group, starts, order, offsets, at, None)


def _dense_sweep(conv: Conv, planes: Planes, direction: str, axes: Sequence[Axis]) -> DenseSweep:
    """Every tap of every channel for every row, rows in threes."""
    at = tap_bytes(conv.kernel, planes, axes)
    used = np.flatnonzero(at >= 0)
    channels = np.arange(planes.channels, dtype=np.int64) * planes.itemsize * planes.channel_size
    offsets = (channels[:, None] + at.reshape(-1)[used]).reshape(-1).astype(np.uint32).view(np.int32)
    rows = conv.out_channels if direction == "forward" else conv.in_channels
    taps = planes.channels * len(used)
    channels_of_block = _block(conv, planes, at)
    width = conv.output_size(planes.height, planes.width)[1] if direction == "forward" else 1
    tiles = tiles_together(width, planes)
    each = max(1, len(used))
    fewer = max(1, channels_of_block // tiles)
    make_index = partial(_dense_index, conv.bitmap, (*conv.shape[:2], conv.taps), used, direction)
    block, at_once = channels_of_block * each, fewer * each
    return DenseSweep(rows, taps, block, torch.from_numpy(offsets), tiles, at_once, make_index)


def _dense_index(stored: Bitmap, shape: tuple[int, ...], used: np.ndarray, direction: str) -> Tensor:
    mask = bitmap.to_mask(stored).numpy()
    position = np.where(mask, np.cumsum(mask) - 1, -1).reshape(shape)[:, :, used]
    weights = position if direction == "forward" else position.transpose(1, 0, 2)
    rows, taps = weights.shape[0], weights.shape[1] * weights.shape[2]
    index = np.full((ceil(rows / 3) * 3, taps), -1, dtype=np.int32)
    index[:rows] = weights.reshape(rows, taps)
    return torch.from_numpy(np.ascontiguousarray(index.reshape(-(-rows // 3), 3, taps).transpose(0, 2, 1)))


def _block(conv: Conv, planes: Planes, at: np.ndarray) -> int:
    """Input channels whose part under a tile fits into L1; more where rows are short."""
    block = channels_in_l1(planes, at)
    linear, used = is_linear(conv, planes.height, planes.width), max(1, int((at >= 0).sum()))
    while conv.density * block * used < few(linear) and block < planes.channels:
        block *= 2
        if not linear:
            break
    return ceil(planes.channels / ceil(planes.channels / block))
