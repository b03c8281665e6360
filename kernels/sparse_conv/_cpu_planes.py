"""Bordered planes: where the input of a native convolution goes, so that a weight is an offset.

This file decides the borders and how many batch columns lie side by side (`lanes`).
"""

import os
from dataclasses import dataclass, fields
from functools import cache, cached_property
from math import ceil
from typing import Any

import numpy as np

from sparsefl.kernels.native import extension

LINE = 16  # floats
FLOAT = 4  # bytes; a bfloat16 has 2
L1 = {4: 20 << 10, 8: 20 << 10, 16: 48 << 10}  # bytes of a block's input in L1, by the lanes of a vector
SMALL = 24 << 10  # the same of bfloat16, where L1 has 32 KB


def l1(itemsize: int) -> int:
    """Bytes of a block's input in L1, for entries of so many bytes. With floats, more than the 32 KB of a
    small L1 was found best there too; with bfloat16 twice as many products wait for what comes from L2."""
    usual = L1[extension().conv_vector()]
    return min(usual, SMALL) if itemsize < FLOAT and _l1_size() == 32 << 10 else usual


@cache
def _l1_size() -> int:
    """Of this processor; 0: the system does not say."""
    known = "SC_LEVEL1_DCACHE_SIZE"
    return os.sysconf(known) if known in os.sysconf_names else 0


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
    """The fields of ConvPlanes, csrc/layers/conv.h."""

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
    high: int
    tile: int
    itemsize: int = FLOAT  # bytes of an entry

    @cached_property
    def native(self) -> Any:
        return extension().ConvPlanes(
            **{field.name: getattr(self, field.name) for field in fields(self) if field.name != "itemsize"}
        )

    @property
    def channel_size(self) -> int:
        return self.phases**2 * self.plane_size

    @property
    def is_input(self) -> bool:
        """Is the tensor itself what its planes would be, as for a linear layer and a batch of whole lines?"""
        whole = self.rows * self.columns * self.lanes == self.plane_size
        same = (self.rows, self.columns, self.lanes) == (self.height, self.width, self.batch)
        return whole and same and self.stride == 1 and self.batch % line(self.itemsize) == 0

    @property
    def size(self) -> int:
        """Entries of all planes. A tile may read a little beyond the last."""
        return self.chunks * self.channels * self.channel_size + line(self.itemsize) * 16


def line(itemsize: int) -> int:
    """Entries of a cache line."""
    return LINE * FLOAT // itemsize


def make_planes(
    channels: int,
    size: tuple[int, int, int],
    stride: int,
    axes: list[list[Axis]],
    grid: tuple[int, int],
    lanes: int | None = None,
    itemsize: int = FLOAT,
) -> Planes:
    """`lanes`: batch columns side by side; None: those that need the fewest tiles."""
    height, width, batch = size
    top, left = (max(pair[i].before for pair in axes) for i in (0, 1))
    below, right = (max(pair[i].after for pair in axes) for i in (0, 1))
    halo = top + below, left + right
    tile = tile_size(halo, itemsize)
    lanes, high = choose_tile(channels, grid, halo, batch, itemsize) if lanes is None else (lanes, 1)
    rows = grid[0] + top + below
    columns = grid[1] + left + right
    entries = line(itemsize)
    segment = ceil((min(tile // high // lanes, grid[1]) + left + right) * lanes / entries)
    beyond = entries if lanes < entries else 0  # the last vector of a row may end after the row
    lines = ceil((rows * columns * lanes + beyond) / entries)
    plane = _spread(lines, columns * lanes // entries, top + below + high, segment)
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
        plane * entries,
        high,
        tile,
        itemsize,
    )
    if planes.channels * planes.channel_size * itemsize >= 2**32:
        raise ValueError(f"expected an image whose bordered planes have less than 4 GiB, got {planes}")
    return planes


def choose_tile(
    channels: int, grid: tuple[int, int], halo: tuple[int, int], batch: int, itemsize: int = FLOAT
) -> tuple[int, int]:
    """The batch columns side by side, and the rows of a tile, that need the fewest vectors. Of equals:

    16 lanes           the fewest tiles, then the least input under one that is more than L1 holds
    ... a small tile   the whole batch, up to 64: what is copied lies side by side; then the same
    all                for one position the most columns, else the batch, or the nearest to a cache line

    Vectors that begin within a line cost half as much again."""
    floats, most, tile = extension().conv_vector(), extension().conv_tile(), tile_size(halo, itemsize)
    vector = floats * FLOAT // itemsize
    height, width = grid

    def cost(lanes: int, high: int) -> tuple[float, ...]:
        whole, rest = divmod(batch, lanes)
        ends = [lanes] * whole + [rest] * (rest > 0)  # batch columns of the last position, by chunks
        vectors = sum(ceil(((width - 1) * lanes + n) / vector) for n in ends)
        columns = min(width, tile // (lanes * high))
        tiles = len(ends) * ceil(width / columns) * ceil(height / high)
        under = itemsize * channels * (high + halo[0]) * (columns + halo[1]) * lanes
        by_size = (tiles, max(under, L1[floats])) if floats == 16 else ()
        if tile < most:
            by_size = (lanes != batch and batch <= 64, *by_size[:1], under)
        same = len(ends) if width == 1 else lanes != batch
        return vectors * (1.5 if lanes < vector else 1), *by_size, same

    shapes = (
        (lanes, high)
        for lanes in (line(itemsize), 8, 16, 32, 64, 128, 256)
        for high in _highs(grid, halo if tile < most else None)
        if lanes * high <= tile
    )
    return min(shapes, key=lambda shape: cost(*shape))


def tile_size(halo: tuple[int, int], itemsize: int = FLOAT) -> int:
    """Entries of a tile, at most. Where L1 is small, half of what the registers hold: with a halo around it,
    the input of more channels fits into L1, and a visit has more weights."""
    return extension().conv_halo_tile() if max(halo) and itemsize == FLOAT else extension().conv_tile()


def _highs(grid: tuple[int, int], halo: tuple[int, int] | None) -> tuple[int, ...]:
    """Rows that a tile may have: more than one where there are 32 registers, and a small tile (whose halo is
    given) gains from it."""
    if extension().conv_vector() < 16:
        return (1,)
    if halo is not None:
        return (1, 2) if halo[0] > 1 and grid[0] > 1 else (1,)
    return tuple(high for high in ((1, 2, 4) if grid[1] <= 4 else (1, 2)) if high <= grid[0])


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
