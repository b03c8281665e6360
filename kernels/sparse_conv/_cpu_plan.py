"""How the native kernels run one convolution for one image and batch size: planes, and passes over them."""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import Any

from sparsefl.kernels.native import extension
from sparsefl.kernels.sparse_conv._cpu_planes import Axis, Planes, make_planes
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


def forward(conv: Conv, height: int, width: int, batch: int, kernel: str) -> Direction:
    """The plan of the forward pass. The weight gradient uses it too: it reads the same inputs."""
    return _kept(conv, ("forward", height, width, batch, kernel == "dense"), _forward)


def input_gradient(conv: Conv, height: int, width: int, batch: int, kernel: str) -> Direction:
    return _kept(conv, ("input_gradient", height, width, batch, kernel == "dense"), _input_gradient)


def _kept(conv: Conv, key: tuple, make: Callable[..., Direction]) -> Direction:
    return conv.plans.plan((*key, extension().isa()), lambda: make(conv, *key[1:]))


def _forward(conv: Conv, height: int, width: int, batch: int, dense: bool) -> Direction:
    out_height, out_width = conv.output_size(height, width)
    s = conv.stride
    axes = [
        Axis(*zip(*(((k * d - p) % s, (k * d - p) // s) for k in range(n)), strict=True))
        for n, p, d in zip(conv.kernel, conv.padding, conv.dilation, strict=True)
    ]
    planes = make_planes(conv.in_channels, (height, width, batch), s, [axes], (out_height, out_width))
    output = extension().ConvOutput(
        height=out_height,
        width=out_width,
        batch=batch,
        plane_size=out_height * out_width * batch,
        row_size=out_width * batch,
        column_size=batch,
    )
    return Direction(planes, [Pass(make_sweep(conv, planes, "forward", axes, 0, dense), output, 0)])


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
    planes = make_planes(conv.out_channels, size, 1, axes, (ceil(height / s), ceil(width / s)))
    passes = []
    for phase, ((a, b), pair) in enumerate(zip(pairs, axes, strict=True)):
        output = extension().ConvOutput(
            height=ceil((height - a) / s),
            width=ceil((width - b) / s),
            batch=batch,
            plane_size=height * width * batch,
            row_size=s * width * batch,
            column_size=s * batch,
        )
        sweep = make_sweep(conv, planes, "input_gradient", pair, phase, dense)
        passes.append(Pass(sweep, output, (a * width + b) * batch))
    return Direction(planes, passes)
