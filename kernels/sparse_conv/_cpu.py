"""Native sparse convolution."""

import torch
from torch import Tensor

from kernels.native import extension, num_threads, pointer
from kernels.registry import register
from kernels.sparse_conv import Conv, plan
from kernels.sparse_conv.plan import DenseSweep, Direction, Planes, Sweep


@register("conv_forward", "cpu")
def conv_forward(conv: Conv, values: Tensor, x: Tensor, bias: Tensor | None, y: Tensor) -> None:
    _apply(plan.forward(conv, *x.shape[1:]), values, x, bias, y)


@register("conv_input_gradient", "cpu")
def conv_input_gradient(conv: Conv, values: Tensor, dy: Tensor, dx: Tensor) -> None:
    _apply(plan.input_gradient(conv, *dx.shape[1:]), values, dy, None, dx)


@register("conv_weight_gradient", "cpu")
def conv_weight_gradient(conv: Conv, x: Tensor, dy: Tensor, dv: Tensor) -> None:
    way = plan.weight_gradient(conv, *x.shape[1:])
    (only,) = way.passes
    sweep = only.sweep
    planes = _planes(way.planes, x)
    at = pointer(planes), pointer(dy)
    if isinstance(sweep, DenseSweep):
        shape = way.planes.numbers, sweep.gradient_numbers, only.output
        extension().conv_dense_gradient(*shape, sweep.tiles, *at, pointer(dv), num_threads())
        return
    gradients = torch.empty(sweep.index.numel())
    shape = way.planes.numbers, sweep.numbers, only.output
    extension().conv_gradient(*shape, *at, pointer(gradients), num_threads())
    index = pointer(sweep.index, torch.int32), sweep.index.numel()
    extension().conv_scatter(pointer(gradients), *index, pointer(dv), num_threads())


def _apply(way: Direction, values: Tensor, x: Tensor, bias: Tensor | None, y: Tensor) -> None:
    planes = _planes(way.planes, x)
    start = 0 if bias is None else pointer(bias)
    for step in way.passes:
        run = extension().conv_dense_apply if isinstance(step.sweep, DenseSweep) else extension().conv_apply
        weights = _ordered(step.sweep, values)
        at = pointer(planes), pointer(weights), start, pointer(y) + 4 * step.offset
        run(way.planes.numbers, step.sweep.numbers, step.output, *at, num_threads())


def _planes(planes: Planes, x: Tensor) -> Tensor:
    out = planes.empty()
    extension().conv_planes(planes.numbers, pointer(x), pointer(out), num_threads())
    return out


def _ordered(sweep: Sweep | DenseSweep, values: Tensor) -> Tensor:
    """The values in the order of the sweep, zeros where a four is filled up."""
    out = torch.empty(sweep.index.numel())
    index = pointer(sweep.index, torch.int32), sweep.index.numel()
    extension().conv_gather(pointer(values), *index, pointer(out), num_threads())
    return out
