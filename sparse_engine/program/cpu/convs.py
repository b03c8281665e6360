"""A convolution step on the native kernels: which of them runs each direction, its planes, its directions."""

from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, NamedTuple

import numpy as np

from sparse_engine.program.steps import Conv, Shape
from sparsefl.kernels.native import extension, table
from sparsefl.kernels.native import on as native_on
from sparsefl.kernels.sparse_conv import _cpu_geometry as geometry
from sparsefl.kernels.sparse_conv import split
from sparsefl.kernels.sparse_conv._cpu_planes import FLOAT, Planes

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
    """Directions are made as they are asked for; `native` holds them all afterwards.

    A kernel may name an instruction set of its own ("sparse:avx2"): then its planes, its order and the table
    that it is called through are of that one.
    """

    step: Conv
    x: Shape
    y: Shape
    lanes: int
    kernels: Kernels
    itemsize: int = FLOAT  # bytes of an entry of images
    dot: bool = False  # products of pairs of bfloat16 have an instruction
    directions: list[Any] = field(default_factory=list)
    _known: dict[tuple[str, str], int] = field(default_factory=dict)
    _ways: dict[tuple[str, str, bool], geometry.Ways] = field(default_factory=dict)

    @property
    def linear(self) -> bool:
        return geometry.is_linear(self.step.geometry, *self.x[1:])

    def pairs(self, kernel: str) -> bool:
        """Does it take planes whose entries are a bfloat16 of each of two channels? So the dense one where
        products of pairs have an instruction."""
        return self.dot and split(kernel) == ("dense", "")

    def ways(self, way: str, kernel: str) -> geometry.Ways:
        """Return planes and passes of "forward" or "backward" for a kernel."""
        isa, pairs = split(kernel)[1], self.pairs(kernel)
        if (way, isa, pairs) not in self._ways:
            make = geometry.forward if way == "forward" else geometry.input_gradient
            shape, itemsize = self.step.geometry, FLOAT if pairs else self.itemsize
            if pairs and way == "forward":
                shape = replace(shape, in_channels=-(-shape.in_channels // 2))
            elif pairs:
                shape = replace(shape, out_channels=-(-shape.out_channels // 2))
            with native_on(isa):
                self._ways[way, isa, pairs] = make(shape, *self.x[1:], self.lanes, itemsize=itemsize)
        return self._ways[way, isa, pairs]

    def planes(self, way: str, kernel: str) -> Planes:
        return self.ways(way, kernel).planes

    @property
    def scatters(self) -> bool:
        """Is the input gradient taken in the order of the forward pass?"""
        kernel, isa = split(self.kernels.input_gradient)
        with native_on(isa):
            return kernel == "sparse" and self.linear and self.lanes <= extension().conv_tile()

    @property
    def weights(self) -> int:
        """Entries of the whole weight, those between groups included."""
        return self.step.geometry.shape.numel()

    def direction(self, way: str, kernel: str) -> int:
        """Return the number of a direction; way: "forward" or "backward", kernel: "sparse", "dense", or
        "offsets" (dense without weights), with its instruction set."""
        if (way, kernel) not in self._known:
            self._known[way, kernel] = len(self.directions)
            name, isa = split(kernel)
            with native_on(isa):
                self.directions.append(self._made(way, self.ways(way, kernel), name, isa))
        return self._known[way, kernel]

    def _made(self, way: str, ways: geometry.Ways, kernel: str, isa: str) -> Any:
        native = extension().program
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
            itemsize=ways.planes.itemsize,
            pairs=not isa and self.pairs(kernel),
            on=table(isa),
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

    def tiles(self, kernel: str) -> int:
        with native_on(split(kernel)[1]):
            return geometry.tiles_together(self.y[2], self.planes("forward", kernel))

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
        return _KERNELS[split(kernel)[0]]


def _blocks(step: Conv) -> list[int]:
    """The words of the bitmap of a grouped weight within the whole one: its blocks are stored."""
    rows = step.geometry.out_channels // step.groups
    mask = np.kron(np.eye(step.groups, dtype=bool), np.ones((rows, prod(step.weight.shape[1:])), bool))
    bits = np.packbits(mask.reshape(-1), bitorder="little")
    return np.pad(bits, (0, -len(bits) % 8)).view(np.uint64).tolist()
