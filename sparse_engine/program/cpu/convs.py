"""A convolution step on the native kernels: which of them runs each direction, its planes, its directions."""

from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, NamedTuple

import numpy as np

from sparse_engine.program.steps import Conv, Shape
from sparsefl.kernels.native import extension
from sparsefl.kernels.sparse_conv import _cpu_geometry as geometry
from sparsefl.kernels.sparse_conv._cpu_planes import FLOAT

LANES = (16, 32, 64, 128)  # batch columns side by side that fill whole tiles
_KERNELS = {"sparse": 0, "dense": 1, "winograd": 2}  # WeightGradient::Kernel, csrc/program/conv_steps.h


class Kernels(NamedTuple):
    """The kernel of each direction of a convolution; `growth`: of the gradient of the whole weight."""

    forward: str
    input_gradient: str
    weight_gradient: str
    growth: str


def lanes_for(batch: int) -> int:
    """Return the columns of a row for a batch: more than its samples where that makes whole vectors."""
    return next((lanes for lanes in LANES if batch <= lanes), -(-batch // 16) * 16)


@dataclass
class ConvPlan:
    """Directions are made as they are asked for; `native` holds them all afterwards."""

    step: Conv
    x: Shape
    y: Shape
    lanes: int
    kernels: Kernels
    itemsize: int = FLOAT  # bytes of an entry of images
    dot: bool = False  # products of pairs of bfloat16 have an instruction
    directions: list[Any] = field(default_factory=list)
    _known: dict[tuple[str, str], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        size = (*self.x[1:], self.lanes)
        self.linear = geometry.is_linear(self.step.geometry, *self.x[1:])
        self.forward = geometry.forward(self.step.geometry, *size, itemsize=self.itemsize)
        self.backward = geometry.input_gradient(self.step.geometry, *size, itemsize=self.itemsize)

    @property
    def scatters(self) -> bool:
        """Is the input gradient taken in the order of the forward pass?"""
        one_tile = self.linear and self.lanes <= extension().conv_tile()
        return one_tile and self.kernels.input_gradient == "sparse"

    @property
    def weights(self) -> int:
        """Entries of the whole weight, those between groups included."""
        return self.step.geometry.shape.numel()

    def dense(self, way: str) -> geometry.Ways:
        """Planes and passes of the dense kernel: where there is an instruction for pairs, an entry is a
        bfloat16 of each of two channels, and as large as a float."""
        if not self.dot:
            return self.forward if way == "forward" else self.backward
        shape, size = self.step.geometry, (*self.x[1:], self.lanes)
        if way == "forward":
            return geometry.forward(replace(shape, in_channels=-(-shape.in_channels // 2)), *size)
        return geometry.input_gradient(replace(shape, out_channels=-(-shape.out_channels // 2)), *size)

    def direction(self, way: str, kernel: str) -> int:
        """Return the number of a direction; way: "forward" or "backward", kernel: "sparse", "dense", or
        "offsets" (dense without weights)."""
        if (way, kernel) not in self._known:
            self._known[way, kernel] = len(self.directions)
            self.directions.append(self._made(way, kernel))
        return self._known[way, kernel]

    def _made(self, way: str, kernel: str) -> Any:
        native = extension().program
        pairs = kernel == "dense" and self.dot
        ways = self.forward if way == "forward" else self.backward
        ways = self.dense(way) if pairs else ways
        passes = []
        for one in ways.passes:
            at = geometry.tap_bytes(self.step.geometry.kernel, ways.planes, one.axes)
            passes.append(
                native.Pass(
                    output=one.output.native,
                    offset=one.output.offset,
                    taps=at.reshape(-1).tolist(),
                    block=geometry.channels_in_l1(ways.planes, at),
                    few=geometry.few(self.linear),
                    often=self.linear,
                )
            )
        return native.Direction(
            transposed=way == "backward",
            dense=kernel != "sparse",
            weights=kernel != "offsets",
            itemsize=FLOAT if pairs else self.itemsize,
            pairs=pairs,
            planes=ways.planes.native,
            passes=passes,
        )

    def native(self) -> Any:
        native, weight, shape = extension().program, self.step.weight, self.step.geometry
        segment = -1 if weight.segment is None else weight.segment
        sizes = {"out": shape.out_channels, "in": shape.in_channels, "taps": shape.taps}
        blocks = [] if self.step.groups == 1 else _blocks(self.step)
        return native.Conv(
            weight=native.Weight(
                segment=segment, at=weight.at, **sizes, blocks=blocks, entries=prod(weight.shape)
            ),
            directions=self.directions,
        )

    @property
    def tiles(self) -> int:
        return geometry.tiles_together(self.y[2], self.forward.planes)

    def images(self, way: str) -> Any:
        """ConvImages (csrc/layers/conv.h) of Winograd's kernel; way: "forward" or "backward"."""
        top, left = self.step.geometry.padding
        x, y = (self.x, self.y) if way == "forward" else (self.y, self.x)
        if way == "backward":
            top, left = 2 - top, 2 - left
        return extension().ConvImages(
            height=x[1],
            width=x[2],
            batch=self.lanes,
            out_height=y[1],
            out_width=y[2],
            top=top,
            left=left,
        )

    def filter(self, way: str) -> Any:
        """ConvFilter (csrc/layers/conv.h): for the input gradient the weight is turned round."""
        out, into = self.step.geometry.out_channels, self.step.geometry.in_channels
        if way == "forward":
            sizes = {"rows": out, "channels": into, "row_size": 9 * into, "channel_size": 9}
        else:
            sizes = {"rows": into, "channels": out, "row_size": 9, "channel_size": 9 * into}
        return extension().ConvFilter(**sizes, flip=way == "backward")

    @staticmethod
    def kernel_number(kernel: str) -> int:
        return _KERNELS[kernel]


def _blocks(step: Conv) -> list[int]:
    """The words of the bitmap of a grouped weight within the whole one: its blocks are stored."""
    rows = step.geometry.out_channels // step.groups
    mask = np.kron(np.eye(step.groups, dtype=bool), np.ones((rows, prod(step.weight.shape[1:])), bool))
    bits = np.packbits(mask.reshape(-1), bitorder="little")
    return np.pad(bits, (0, -len(bits) % 8)).view(np.uint64).tolist()
