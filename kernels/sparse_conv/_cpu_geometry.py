"""Where the taps of a native convolution find their inputs: planes for a direction, and passes over them.

Nothing here depends on the pattern of the weight.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np

from sparsefl.kernels.native import extension
from sparsefl.kernels.sparse_conv._cpu_planes import FLOAT, Axis, Planes, l1, make_planes
from sparsefl.kernels.sparse_conv.conv import Conv, Geometry

FEW = {4: 24, 8: 24, 16: 10}  # weights of a row and block below which its overhead shows: then blocks double
FEW_LINEAR = 40  # the same for linear layers, which reuse no input: blocks double until rows have this many


@dataclass(frozen=True)
class Output:
    """The fields of ConvOutput, csrc/layers/conv.h, and where in the tensor the pass begins."""

    height: int
    width: int
    batch: int
    plane_size: int
    row_size: int
    column_size: int
    offset: int = 0

    @property
    def native(self) -> object:
        return extension().ConvOutput(**{k: v for k, v in vars(self).items() if k != "offset"})


@dataclass(frozen=True)
class Place:
    """A pass: its taps along both axes, and where its results go."""

    axes: Sequence[Axis]
    output: Output


@dataclass(frozen=True)
class Ways:
    """Planes for the input of a direction, and its passes: forward is one, an input gradient has one per
    phase of its stride."""

    planes: Planes
    passes: tuple[Place, ...]


def forward(
    conv: Conv | Geometry,
    height: int,
    width: int,
    batch: int,
    lanes: int | None = None,
    itemsize: int = FLOAT,
) -> Ways:
    """`lanes`: batch columns side by side; None: those that need the fewest tiles."""
    out_height, out_width = conv.output_size(height, width)
    s = conv.stride
    axes = [
        Axis(*zip(*(((k * d - p) % s, (k * d - p) // s) for k in range(n)), strict=True))
        for n, p, d in zip(conv.kernel, conv.padding, conv.dilation, strict=True)
    ]
    grid = out_height, out_width
    planes = make_planes(conv.in_channels, (height, width, batch), s, [axes], grid, lanes, itemsize)
    output = Output(*grid, batch, out_height * out_width * batch, out_width * batch, batch)
    return Ways(planes, (Place(axes, output),))


def input_gradient(
    conv: Conv | Geometry,
    height: int,
    width: int,
    batch: int,
    lanes: int | None = None,
    itemsize: int = FLOAT,
) -> Ways:
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
    grid = ceil(height / s), ceil(width / s)
    planes = make_planes(conv.out_channels, size, 1, axes, grid, lanes, itemsize)
    sizes = height * width * batch, s * width * batch, s * batch
    return Ways(
        planes,
        tuple(
            Place(
                pair,
                Output(ceil((height - a) / s), ceil((width - b) / s), batch, *sizes, (a * width + b) * batch),
            )
            for (a, b), pair in zip(pairs, axes, strict=True)
        ),
    )


def is_linear(conv: Conv | Geometry, height: int, width: int) -> bool:
    """Has it one position, and nothing around it?"""
    return (height, width) == conv.kernel == (1, 1) and conv.padding == (0, 0)


def tap_bytes(kernel: tuple[int, int], planes: Planes, axes: Sequence[Axis]) -> np.ndarray:
    """int64 [kh, kw]: bytes from an output position to what a tap meets in channel 0; -1: not here."""
    at = np.full(kernel, -1, dtype=np.int64)
    for i, j in np.ndindex(*kernel):
        down, across = axes[0].shift[i], axes[1].shift[j]
        if down is not None and across is not None:
            plane = axes[0].phase[i] * planes.phases + axes[1].phase[j]
            position = (down + planes.top) * planes.columns + across + planes.left
            at[i, j] = planes.itemsize * (plane * planes.plane_size + position * planes.lanes)
    return at


def channels_in_l1(planes: Planes, at: np.ndarray) -> int:
    """Input channels whose part under a tile fits into L1; `at`: `tap_bytes`."""
    used = at[at >= 0]
    size = planes.itemsize
    rows = np.unique(used // (size * planes.columns * planes.lanes))
    segments = len(np.unique(rows[:, None] + np.arange(planes.high))) or 1
    columns = used // (size * planes.lanes) % planes.columns
    beyond = planes.lanes * int(np.ptp(columns)) if len(used) else 0
    part = min(planes.tile // planes.high + beyond, planes.columns * planes.lanes)
    return max(1, l1(size) // (size * segments * part))


def tiles_together(width: int, planes: Planes) -> int:
    """Tiles of a row that the dense weight gradient takes at once, at most."""
    return min(4, ceil(width * planes.lanes / extension().conv_tile()))


def few(linear: bool) -> int:
    """Weights of a row and block below which blocks double."""
    return FEW_LINEAR if linear else FEW[extension().conv_vector()]
