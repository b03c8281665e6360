"""What a kernel costs: seconds of a layer's direction, as counts times constants of the processor.

    seconds = a0 + a1 * multiplications by vectors + a2 * weights of tiles + a3 * visits + ...

The counts follow from the layer alone (tiles and planes as _cpu_geometry makes them); the constants are
fitted, none below 0, by least relative squares to what a processor was seen to take (`fit`; sparsefl tune).
They are kept by kernel with its instruction set, direction, and kind of layer.
"""

from collections.abc import Iterable, Mapping
from math import ceil
from typing import NamedTuple

import numpy as np
from scipy.optimize import nnls

from sparse_engine.choice.clock import Image
from sparsefl.kernels import native
from sparsefl.kernels.sparse_conv import Geometry, split
from sparsefl.kernels.sparse_conv import _cpu_geometry as geometry

L1_ROWS = 3  # rows that the dense kernel takes together
MIB = 1 << 20
NUMBER = {"sparse": 11, "dense": 11, "winograd": 9, "torch": 10}  # constants of a kernel
LARGE = 16 << 20  # bytes of Winograd's weights from which they come from memory


class Case(NamedTuple):
    """A direction of a layer."""

    conv: Geometry
    direction: str
    image: Image

    @property
    def kind(self) -> str:
        height, width, _ = self.image
        return "linear" if geometry.is_linear(self.conv, height, width) else "conv"


Costs = Mapping[str, tuple[float, ...]]  # by `name`


def name(case: Case, kernel: str) -> str:
    """The key of a kernel's constants: "sparse avx2 forward conv"."""
    kernel, isa = split(kernel)
    parts = [kernel] if kernel == "torch" else [kernel, isa or native.isa()]
    return " ".join([*parts, case.direction, case.kind])


def seconds(costs: Costs, case: Case, kernel: str) -> float | None:
    """Return what a kernel is expected to take; None without constants for it."""
    constants = costs.get(name(case, kernel))
    if constants is None:
        return None
    return sum(a * n for a, n in zip(constants, counts(case, kernel), strict=True))


def fit(seen: Iterable[tuple[Case, Mapping[str, float]]]) -> dict[str, tuple[float, ...]]:
    """Return the constants of all kernels in `seen`: cases, and the seconds of each kernel."""
    rows: dict[str, list[tuple[tuple[float, ...], float]]] = {}
    for case, times in seen:
        for kernel, time in times.items():
            rows.setdefault(name(case, kernel), []).append((counts(case, kernel), time))
    return {key: _least_squares(found) for key, found in sorted(rows.items())}


def _least_squares(rows: list[tuple[tuple[float, ...], float]]) -> tuple[float, ...]:
    """Errors count relative to the geometric mean of what was seen and what was expected: too much and too
    little alike."""
    a, t = np.array([counts for counts, _ in rows]), np.array([time for _, time in rows])
    weight = 1 / t
    constants = np.zeros(a.shape[1])
    for _ in range(3):
        constants, _ = nnls(a * weight[:, None], t * weight)
        weight = 1 / np.sqrt(t * np.maximum(a @ constants, 1e-9))
    return tuple(float(f"{x:.3g}") for x in constants)


def counts(case: Case, kernel: str) -> tuple[float, ...]:
    kernel, isa = split(kernel)
    if kernel == "torch":
        return _of_torch(case)
    with native.on(isa):
        return _of_winograd(case) if kernel == "winograd" else _of_planes(case, dense=kernel == "dense")


def _of_torch(case: Case) -> tuple[float, ...]:
    conv, (height, width, batch) = case.conv, case.image
    out_height, out_width = conv.output_size(height, width)
    size, positions = conv.shape.numel(), out_height * out_width * batch
    images = conv.in_channels * height * width * batch + conv.out_channels * positions
    product = conv.taps == 1 and conv.stride == 1
    return (
        1,
        size * positions,
        images,
        0 if product or batch == 1 else images,  # turned over
        size,
        size if conv.density < 1 else 0,  # unpacked, or packed
        0 if product else positions,
        size * positions / min(16, conv.in_channels),  # few channels fill no vector
        size * positions / min(16, conv.out_channels),
        size * positions / min(16, positions),
    )


def _of_winograd(case: Case) -> tuple[float, ...]:
    conv, (height, width, batch) = case.conv, case.image
    out, into, back = conv.out_channels, conv.in_channels, case.direction == "input_gradient"
    high, wide = (height, width) if back else conv.output_size(height, width)
    vector = native.extension().conv_vector()
    columns = ceil(high / 4) * ceil(wide / 4) * ceil(batch / vector) * vector
    first, second = (out, into) if back else (into, out)
    products, transformed = 36 * out * into * columns, 36 * 4 * out * into
    return (
        1,
        products,
        first * columns,
        second * columns,
        out * into * 9,
        products * (transformed >= MIB),
        out * into * 9 * (conv.density < 1),
        products * (transformed >= LARGE),
        36 * ceil(second / 6) * 6 * first * columns,
    )


def _of_planes(case: Case, dense: bool) -> tuple[float, ...]:
    """The sparse and the dense kernel, on bordered planes."""
    conv, (height, width, batch) = case.conv, case.image
    back = case.direction == "input_gradient"
    ways = (geometry.input_gradient if back else geometry.forward)(conv, height, width, batch)
    planes, grid, passes = ways.planes, ways.passes[0].output, len(ways.passes)
    vector = native.extension().conv_vector()
    tile = native.extension().conv_tile() if dense else planes.tile
    rows = conv.in_channels if back else conv.out_channels
    lanes, whole, rest = planes.lanes, *divmod(batch, planes.lanes)
    ends = [lanes] * whole + [rest] * (rest > 0)
    high = ceil(grid.height / planes.high)
    tiles = planes.chunks * high * ceil(grid.width / min(max(1, tile // planes.high // lanes), grid.width))
    vectors = sum(high * planes.high * ceil(((grid.width - 1) * lanes + end) / vector) for end in ends)
    taps = geometry.tap_bytes(conv.kernel, planes, ways.passes[0].axes)
    visits = rows * tiles * ceil(planes.channels / geometry.channels_in_l1(planes, taps)) * passes
    copied = 0 if planes.is_input else planes.size
    written = rows * grid.height * grid.width * batch * passes
    size = conv.shape.numel()
    weights = size if dense else conv.density * size
    work = weights * vectors
    cut = 0.5 * work if lanes < vector else 0.0  # vectors that begin within a line
    beyond_l2 = work * (4 * copied > MIB), work * (8 * weights > MIB)
    if dense:
        threes = ceil(rows / L1_ROWS) * L1_ROWS / rows
        ordered = size * (conv.density < 1)
        return (1, threes * work, cut, size * tiles, visits, copied, size, written, ordered, *beyond_l2)
    return (
        1,
        work,
        cut,
        weights * tiles,
        visits,
        copied,
        written,
        weights,
        *beyond_l2,
        written * (4 * copied > MIB),
    )
