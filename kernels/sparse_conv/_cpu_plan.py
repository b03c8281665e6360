"""How the native kernels run one convolution for one image and batch size: planes, and passes over them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sparsefl.kernels.native import extension
from sparsefl.kernels.sparse_conv import _cpu_geometry as geometry
from sparsefl.kernels.sparse_conv._cpu_geometry import Ways
from sparsefl.kernels.sparse_conv._cpu_planes import FLOAT, Planes
from sparsefl.kernels.sparse_conv._cpu_sweep import DenseSweep, Sweep, make_sweep
from sparsefl.kernels.sparse_conv.conv import Conv


@dataclass(frozen=True)
class Pass:
    """A sweep and where its results go: forward is one, an input gradient has one per phase of its stride."""

    sweep: Sweep | DenseSweep
    output: Any  # ConvOutput, csrc/layers/conv.h
    offset: int  # floats


@dataclass(frozen=True)
class Direction:
    """Planes for the input of a direction, and its passes."""

    planes: Planes
    passes: list[Pass]


def forward(conv: Conv, height: int, width: int, batch: int, kernel: str, itemsize: int = FLOAT) -> Direction:
    """The plan of the forward pass. The weight gradient uses it too: it reads the same inputs."""
    return _kept(conv, ("forward", height, width, batch, kernel == "dense", itemsize), _forward)


def input_gradient(
    conv: Conv, height: int, width: int, batch: int, kernel: str, itemsize: int = FLOAT
) -> Direction:
    return _kept(conv, ("input_gradient", height, width, batch, kernel == "dense", itemsize), _input_gradient)


def _kept(conv: Conv, key: tuple, make: Callable[..., Direction]) -> Direction:
    return conv.plans.plan((*key, extension().isa()), lambda: make(conv, *key[1:]))


def _forward(conv: Conv, height: int, width: int, batch: int, dense: bool, itemsize: int) -> Direction:
    return _made(conv, "forward", geometry.forward(conv, height, width, batch, itemsize=itemsize), dense)


def _input_gradient(conv: Conv, height: int, width: int, batch: int, dense: bool, itemsize: int) -> Direction:
    ways = geometry.input_gradient(conv, height, width, batch, itemsize=itemsize)
    return _made(conv, "input_gradient", ways, dense)


def _made(conv: Conv, direction: str, ways: Ways, dense: bool) -> Direction:
    passes = [
        Pass(
            make_sweep(conv, ways.planes, direction, place.axes, i, dense),
            place.output.native,
            place.output.offset,
        )
        for i, place in enumerate(ways.passes)
    ]
    return Direction(ways.planes, passes)
