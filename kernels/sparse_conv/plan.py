"""How the native kernels run one convolution for one image and batch size.

The input goes into bordered planes (csrc/conv.h), so that a weight is an offset. This file decides the
borders, how many batch columns lie side by side (`lanes`), how many input channels make a block, and builds
the weights' order.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil

import numpy as np
import torch
from torch import Tensor

from sparsefl.kernels import bitmap, memory
from sparsefl.kernels.native import extension, pointer
from sparsefl.kernels.sparse_conv import Conv

L1 = 20 * 1024  # bytes of a block's input that stay in L1 beside sums and weights
L2 = 128 * 1024  # bytes of the sums of a group of rows
FEW = 24  # weights of a row and block below which its overhead shows: then blocks double
FEW_LINEAR = 40  # the same with one position, where no input is read twice: blocks grow as far as it takes
LINE = 16  # floats


@dataclass(frozen=True)
class Axis:
    """Taps along one axis: for output position i, tap k meets input stride * (i + shift[k]) + phase[k]."""

    phase: tuple[int, ...]
    shift: tuple[int | None, ...]  # None: the tap has no part in this pass

    @property
    def before(self) -> int:
        return max(0, *(-s for s in self.shift if s is not None), 0)

    @property
    def after(self) -> int:
        return max(0, *(s for s in self.shift if s is not None), 0)


@dataclass(frozen=True)
class Planes:
    """csrc/conv.h: ConvPlanes, in its order."""

    channels: int
    height: int
    width: int
    batch: int
    stride: int
    phases: int
    top: int
    left: int
    rows: int
    columns: int
    lanes: int
    chunks: int
    plane_size: int

    @property
    def numbers(self) -> list[int]:
        return list(vars(self).values())

    @property
    def channel_size(self) -> int:
        return self.phases**2 * self.plane_size

    @property
    def size(self) -> int:
        """Floats of all planes. A tile may read a little beyond the last."""
        return self.chunks * self.channels * self.channel_size + LINE * 16


@dataclass(frozen=True)
class Sweep:
    """The weights of one pass, ordered as csrc/conv.h: ConvWeights. One for all batches with these lanes."""

    rows: int
    block: int  # channels
    group: int  # rows
    starts: Tensor
    order: Tensor
    offsets: Tensor
    at: Tensor | None  # forward: the packed position of each visit's first weight
    index: Tensor | None  # transposed: the packed position of each weight

    @property
    def numbers(self) -> list[int]:
        at = 0 if self.at is None else pointer(self.at, torch.int32)
        lists = [pointer(x, torch.int32) for x in (self.starts, self.order)]
        return [self.rows, self.order.numel(), *lists, at, pointer(self.offsets, torch.int32)]


@dataclass(frozen=True)
class DenseSweep:
    """A pass over the whole weight, zeros where nothing is stored. csrc/conv.h: ConvDense."""

    rows: int
    taps: int
    block: int
    offsets: Tensor
    index: Tensor  # [rows in threes, taps, 3]: the packed position of each weight; -1 where none is stored
    tiles: int  # of a row that the weight gradient takes together
    gradient_block: int

    @property
    def numbers(self) -> list[int]:
        return [self.rows, self.taps, self.block, pointer(self.offsets, torch.int32)]

    @property
    def gradient_numbers(self) -> list[int]:
        return [self.rows, self.taps, self.gradient_block, pointer(self.offsets, torch.int32)]


@dataclass(frozen=True)
class Pass:
    """A sweep and where its results go: forward is one, an input gradient has one a phase of its stride."""

    sweep: Sweep | DenseSweep
    output: list[int]  # csrc/conv.h: ConvOutput
    offset: int  # floats


@dataclass(frozen=True)
class Direction:
    """Planes for the input of a direction, and its passes."""

    planes: Planes
    passes: list[Pass]


def forward(conv: Conv, height: int, width: int, batch: int, kernel: str) -> Direction:
    """Also of the weight gradient, which meets the same inputs."""
    return _kept(conv, ("forward", height, width, batch, kernel == "dense"), _forward)


def input_gradient(conv: Conv, height: int, width: int, batch: int, kernel: str) -> Direction:
    return _kept(conv, ("input_gradient", height, width, batch, kernel == "dense"), _input_gradient)


def is_linear(conv: Conv, height: int, width: int) -> bool:
    """Has it one position, and nothing around it?"""
    return (height, width) == conv.kernel == (1, 1) and conv.padding == (0, 0)


def _kept(conv: Conv, key: tuple, make: Callable[..., Direction]) -> Direction:
    key = (*key, extension().isa())
    if key not in conv.plans:
        conv.plans[key] = make(conv, *key[1:5])
    return conv.plans[key]


def _forward(conv: Conv, height: int, width: int, batch: int, dense: bool) -> Direction:
    out_height, out_width = conv.output_size(height, width)
    s = conv.stride
    axes = [
        Axis(*zip(*(((k * d - p) % s, (k * d - p) // s) for k in range(n)), strict=True))
        for n, p, d in zip(conv.kernel, conv.padding, conv.dilation, strict=True)
    ]
    planes = _planes(conv, conv.in_channels, (height, width, batch), s, [axes], (out_height, out_width))
    output = [out_height, out_width, batch, out_height * out_width * batch, out_width * batch, batch]
    return Direction(planes, [Pass(_sweep(conv, planes, "forward", axes, 0, dense), output, 0)])


def _input_gradient(conv: Conv, height: int, width: int, batch: int, dense: bool) -> Direction:
    """Input position s i + a gets tap k from output position i + (a + p - k d) / s, where that is whole."""
    s = conv.stride
    phases = [
        [
            Axis((0,) * n, tuple(None if (a + p - k * d) % s else (a + p - k * d) // s for k in range(n)))
            for a in range(s)
        ]
        for n, p, d in zip(conv.kernel, conv.padding, conv.dilation, strict=True)
    ]
    pairs = [(a, b) for a in range(min(s, height)) for b in range(min(s, width))]
    axes = [[phases[0][a], phases[1][b]] for a, b in pairs]
    size = (*conv.output_size(height, width), batch)
    planes = _planes(conv, conv.out_channels, size, 1, axes, (ceil(height / s), ceil(width / s)))
    passes = []
    for phase, ((a, b), pair) in enumerate(zip(pairs, axes, strict=True)):
        output = [ceil((height - a) / s), ceil((width - b) / s), batch]
        output += [height * width * batch, s * width * batch, s * batch]
        sweep = _sweep(conv, planes, "input_gradient", pair, phase, dense)
        passes.append(Pass(sweep, output, (a * width + b) * batch))
    return Direction(planes, passes)


def _planes(
    conv: Conv,
    channels: int,
    size: tuple[int, int, int],
    stride: int,
    axes: list[list[Axis]],
    grid: tuple[int, int],
) -> Planes:
    height, width, batch = size
    top, left = (max(pair[i].before for pair in axes) for i in (0, 1))
    below, right = (max(pair[i].after for pair in axes) for i in (0, 1))
    tile = extension().conv_tile()
    lanes = choose_lanes(tile, grid[1], batch)
    positions = tile // lanes
    rows = grid[0] + top + below
    columns = ceil(grid[1] / positions) * positions + left + right
    segment = ceil((positions + left + right) * lanes / LINE)
    plane = _spread(ceil(rows * columns * lanes / LINE), columns * lanes // LINE, top + below + 1, segment)
    planes = Planes(
        channels,
        height,
        width,
        batch,
        stride,
        1 + max(max(axis.phase) for pair in axes for axis in pair),
        top,
        left,
        rows,
        columns,
        lanes,
        ceil(batch / lanes),
        plane * LINE,
    )
    if planes.channels * planes.channel_size * 4 >= 2**32:
        raise ValueError(f"expected an image whose bordered planes have less than 4 GiB, got {planes}")
    return planes


def choose_lanes(tile: int, width: int, batch: int) -> int:
    """The batch columns side by side that need the fewest tiles; of equals, the nearest to a cache line."""
    options = [lanes for lanes in (LINE, 8, 32, 64, 128) if lanes <= tile]
    return min(options, key=lambda lanes: ceil(batch / lanes) * ceil(width / (tile // lanes)))


def _spread(lines: int, row: int, rows: int, segment: int) -> int:
    """Cache lines from plane to plane, at least `lines`: what a block reads should share few cache sets."""
    sets, channels = 64, 16
    offsets = np.arange(rows)[:, None] * row + np.arange(segment)[None, :]
    places = [lines + extra for extra in range(16)]
    crowding = [
        np.bincount(
            ((np.arange(channels) * place)[:, None] + offsets.reshape(1, -1)).reshape(-1) % sets
        ).max()
        for place in places
    ]
    return places[int(np.argmin(crowding))]


def _sweep(
    conv: Conv, planes: Planes, direction: str, axes: list[Axis], phase: int, dense: bool
) -> Sweep | DenseSweep:
    """The weights of a pass, in blocks of channels; made once for all batch sizes that share the lanes."""
    key = (direction, phase, replace(planes, batch=0, chunks=0), extension().isa(), dense)
    if key not in conv.plans and dense:
        conv.plans[key] = _dense_sweep(conv, planes, direction, axes)
    elif key not in conv.plans:
        transposed = direction != "forward"
        rows = conv.in_channels if transposed else conv.out_channels
        lists = (
            bitmap.transpose(conv.bitmap, conv.out_channels) if transposed else bitmap.csr(conv.bitmap, rows)
        )
        taps = _tap_bytes(conv, planes, axes)
        pattern = [int(transposed), rows, conv.taps, *(pointer(x, torch.int32) for x in lists)]
        pattern += [] if transposed else [0]
        pattern.append(taps.ctypes.data)
        block = _block(conv, planes, taps)
        group = max(1, L2 // (4 * extension().conv_tile()))
        visits = ceil(planes.channels / block) * rows
        starts, order = (memory.plain(visits + extra, torch.int32) for extra in (1, 0))
        into = pointer(starts, torch.int32), pointer(order, torch.int32)
        how = planes.channels, block, group
        count = extension().conv_count(pattern, *how, *into)
        offsets, index = (memory.plain(count, torch.int32) for _ in range(2))
        into += pointer(offsets, torch.int32), pointer(index, torch.int32)
        extension().conv_fill(pattern, *how, 4 * planes.channel_size, *into)
        if transposed:
            conv.plans[key] = Sweep(rows, block, group, starts, order, offsets, None, index)
        else:  # a visit's weights lie side by side in the packed values
            padded = torch.cat([index, index.new_zeros(1)])  # an empty visit may start at the end
            at = padded[starts[:-1].long()]
            conv.plans[key] = Sweep(rows, block, group, starts, order, offsets, at, None)
    return conv.plans[key]


def _dense_sweep(conv: Conv, planes: Planes, direction: str, axes: list[Axis]) -> DenseSweep:
    """Every tap of every channel for every row, rows in threes."""
    at = _tap_bytes(conv, planes, axes)
    used = np.flatnonzero(at >= 0)
    channels = np.arange(planes.channels, dtype=np.int64) * 4 * planes.channel_size
    offsets = (channels[:, None] + at.reshape(-1)[used]).reshape(-1).astype(np.uint32).view(np.int32)
    mask = bitmap.to_mask(conv.bitmap).numpy()
    stored = np.where(mask, np.cumsum(mask) - 1, -1).reshape(conv.out_channels, conv.in_channels, conv.taps)
    weights = stored[:, :, used] if direction == "forward" else stored[:, :, used].transpose(1, 0, 2)
    rows, taps = weights.shape[0], weights.shape[1] * weights.shape[2]
    index = np.full((ceil(rows / 3) * 3, taps), -1, dtype=np.int32)
    index[:rows] = weights.reshape(rows, taps)
    index = np.ascontiguousarray(index.reshape(-(-rows // 3), 3, taps).transpose(0, 2, 1))
    channels_of_block = _block(conv, planes, at)
    width = conv.output_size(planes.height, planes.width)[1] if direction == "forward" else 1
    across = ceil(width * planes.lanes / extension().conv_tile())
    tiles = next(n for n in (4, 2, 1) if across % n == 0)
    each = max(1, len(used))
    fewer = max(1, channels_of_block // tiles)
    lists = torch.from_numpy(offsets), torch.from_numpy(index)
    return DenseSweep(rows, taps, channels_of_block * each, *lists, tiles, fewer * each)


def _tap_bytes(conv: Conv, planes: Planes, axes: list[Axis]) -> np.ndarray:
    """int64 [kh, kw]: bytes from an output position to what a tap meets in channel 0; -1: not here."""
    at = np.full(conv.kernel, -1, dtype=np.int64)
    for i, j in np.ndindex(*conv.kernel):
        down, across = axes[0].shift[i], axes[1].shift[j]
        if down is not None and across is not None:
            plane = axes[0].phase[i] * planes.phases + axes[1].phase[j]
            position = (down + planes.top) * planes.columns + across + planes.left
            at[i, j] = 4 * (plane * planes.plane_size + position * planes.lanes)
    return at


def _block(conv: Conv, planes: Planes, at: np.ndarray) -> int:
    """Input channels whose part under a tile fits into L1; more where rows are short."""
    tile = extension().conv_tile()
    used = at[at >= 0]
    segments = len(np.unique(used // (4 * planes.columns * planes.lanes))) or 1
    part = (
        4
        * segments
        * (tile + (planes.columns - tile // planes.lanes) % (tile // planes.lanes) * planes.lanes)
    )
    block = max(1, L1 // part)
    if is_linear(conv, planes.height, planes.width):
        while conv.density * block < FEW_LINEAR and block < planes.channels:
            block *= 2
    elif conv.density * block * max(1, len(used)) < FEW:
        block *= 2
    return min(block, planes.channels)
