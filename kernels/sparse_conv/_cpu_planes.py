"""Bordered planes: where the input of a native convolution goes, so that a weight is an offset.

This file decides the borders and how many batch columns lie side by side (`lanes`).
"""

from dataclasses import dataclass, fields
from functools import cached_property
from math import ceil
from typing import Any

import numpy as np

from sparsefl.kernels.native import extension

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

    @cached_property
    def native(self) -> Any:
        return extension().ConvPlanes(**{field.name: getattr(self, field.name) for field in fields(self)})

    @property
    def channel_size(self) -> int:
        return self.phases**2 * self.plane_size

    @property
    def is_input(self) -> bool:
        """Is the tensor itself what its planes would be, as for a linear layer and a batch of whole lines?"""
        whole = self.rows * self.columns * self.lanes == self.plane_size
        same = (self.rows, self.columns, self.lanes) == (self.height, self.width, self.batch)
        return whole and same and self.stride == 1 and self.batch % LINE == 0

    @property
    def size(self) -> int:
        """Floats of all planes. A tile may read a little beyond the last."""
        return self.chunks * self.channels * self.channel_size + LINE * 16


def make_planes(
    channels: int,
    size: tuple[int, int, int],
    stride: int,
    axes: list[list[Axis]],
    grid: tuple[int, int],
    lanes: int | None = None,
) -> Planes:
    """`lanes`: batch columns side by side; None: those that need the fewest tiles."""
    height, width, batch = size
    top, left = (max(pair[i].before for pair in axes) for i in (0, 1))
    below, right = (max(pair[i].after for pair in axes) for i in (0, 1))
    lanes = lanes or choose_lanes(grid[1], batch)
    tile = extension().conv_tile()
    rows = grid[0] + top + below
    columns = grid[1] + left + right
    segment = ceil((min(tile // lanes, grid[1]) + left + right) * lanes / LINE)
    beyond = LINE if lanes < LINE else 0  # the last vector of a row may end after the row
    lines = ceil((rows * columns * lanes + beyond) / LINE)
    plane = _spread(lines, columns * lanes // LINE, top + below + 1, segment)
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


def choose_lanes(width: int, batch: int) -> int:
    """The batch columns side by side that need the fewest vectors; of equals, for one position the most, else
    the batch, or the nearest to a cache line. Vectors that begin within a line cost half as much again."""
    vector = extension().conv_vector()

    def cost(lanes: int) -> tuple[float, int]:
        whole, rest = divmod(batch, lanes)
        ends = [lanes] * whole + [rest] * (rest > 0)  # batch columns of the last position, by chunks
        vectors = sum(ceil(((width - 1) * lanes + n) / vector) for n in ends)
        return vectors * (1.5 if lanes < vector else 1), len(ends) if width == 1 else lanes != batch

    return min((n for n in (LINE, 8, 32, 64, 128, 256) if n <= extension().conv_tile()), key=cost)


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
