"""Native convolution: sparse, dense or Winograd; or PyTorch's dense one."""

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from sparsefl.kernels import memory, native
from sparsefl.kernels.native import extension, num_threads, pointer
from sparsefl.kernels.pack import pack, unpack
from sparsefl.kernels.registry import register
from sparsefl.kernels.sparse_conv import _cpu_plan as plan
from sparsefl.kernels.sparse_conv import _cpu_torch as by_torch
from sparsefl.kernels.sparse_conv._cpu_choice import split
from sparsefl.kernels.sparse_conv._cpu_geometry import is_linear
from sparsefl.kernels.sparse_conv._cpu_plan import Direction
from sparsefl.kernels.sparse_conv._cpu_planes import Planes
from sparsefl.kernels.sparse_conv._cpu_sweep import DenseSweep, Sweep
from sparsefl.kernels.sparse_conv.conv import Conv


@register("conv_forward", "cpu")
def conv_forward(conv: Conv, values: Tensor, x: Tensor, bias: Tensor | None, y: Tensor, kernel: str) -> None:
    name, isa = split(kernel)
    with native.on(isa):
        _forward(conv, values, x, bias, y, name)


@register("conv_input_gradient", "cpu")
def conv_input_gradient(conv: Conv, values: Tensor, dy: Tensor, dx: Tensor, kernel: str) -> None:
    name, isa = split(kernel)
    with native.on(isa):
        _input_gradient(conv, values, dy, dx, name)


@register("conv_weight_gradient", "cpu")
def conv_weight_gradient(conv: Conv, x: Tensor, dy: Tensor, dv: Tensor, kernel: str) -> None:
    name, isa = split(kernel)
    with native.on(isa):
        _weight_gradient(conv, x, dy, dv, name)


def _forward(conv: Conv, values: Tensor, x: Tensor, bias: Tensor | None, y: Tensor, kernel: str) -> None:
    if kernel == "winograd":
        out, into = conv.out_channels, conv.in_channels
        _winograd(conv, values, x, bias, y, conv.padding, _filter(out, into, 9 * into, 9, flip=False))
    elif kernel == "torch":
        by_torch.forward(conv, values, x, bias, y)
    else:
        _apply(plan.forward(conv, *x.shape[1:], kernel, x.element_size()), values, x, bias, y)


def _input_gradient(conv: Conv, values: Tensor, dy: Tensor, dx: Tensor, kernel: str) -> None:
    if kernel == "winograd":  # a convolution with the weight turned around
        out, into = conv.out_channels, conv.in_channels
        padding = (2 - conv.padding[0], 2 - conv.padding[1])
        _winograd(conv, values, dy, None, dx, padding, _filter(into, out, 9, 9 * into, flip=True))
    elif kernel == "torch":
        by_torch.input_gradient(conv, values, dy, dx)
    elif kernel == "sparse" and dx.dtype == torch.float32 and _is_one_tile(conv, dx):
        _linear_gradient(conv, values, dy, dx)
    else:
        _apply(plan.input_gradient(conv, *dx.shape[1:], kernel, dx.element_size()), values, dy, None, dx)


def _weight_gradient(conv: Conv, x: Tensor, dy: Tensor, dv: Tensor, kernel: str) -> None:
    if kernel == "sparse":
        _sparse_gradient(conv, x, dy, dv)
        return
    if kernel == "torch":
        by_torch.weight_gradient(conv, x, dy, dv)
        return
    full = conv.bitmap.nnz == conv.bitmap.segments.numel
    dw = dv if full else memory.empty((conv.bitmap.segments.numel,), dv)
    if kernel == "winograd":
        channels = conv.out_channels, conv.in_channels
        images = _images(x, dy, conv.padding)
        at = _at(x), _at(dy), pointer(dw)
        _op("conv_winograd_gradient", x)(images, *channels, *at, num_threads())
    else:
        way = plan.forward(conv, *x.shape[1:], kernel, x.element_size())
        (only,) = way.passes
        sweep = only.sweep
        assert isinstance(sweep, DenseSweep)
        shape = way.planes.native, sweep.native_gradient, only.output
        planes = _planes(way.planes, x)
        at = _at(planes), _at(dy), pointer(dw)
        _op("conv_dense_gradient", x)(*shape, sweep.tiles, *at, num_threads())
    if not full:
        pack(dw, conv.bitmap, dv)


def _op(name: str, x: Tensor) -> Any:
    """The native operation for the dtype of the images."""
    return getattr(extension(), name + "_bf16" if x.dtype == torch.bfloat16 else name)


def _at(x: Tensor) -> int:
    return pointer(x, torch.bfloat16 if x.dtype == torch.bfloat16 else torch.float32)


def _dot(x: Tensor) -> tuple[bool, ...]:
    """Whether the sparse bfloat16 kernels use the processor's instruction for it; float ones do not ask."""
    return (native.bf16_dot(),) if x.dtype == torch.bfloat16 else ()


def _is_one_tile(conv: Conv, x: Tensor) -> bool:
    return is_linear(conv, *x.shape[1:3]) and x.shape[3] <= extension().conv_tile()


def _linear_gradient(conv: Conv, values: Tensor, dy: Tensor, dx: Tensor) -> None:
    """With one tile, in the order of the forward pass: bringing the values into the transposed order would be
    most of the work, and the order twice the memory of the weights."""
    way = plan.forward(conv, *dx.shape[1:], "sparse")
    (only,) = way.passes
    sweep = only.sweep
    assert isinstance(sweep, Sweep)
    shape = way.planes.native, sweep.native, sweep.block, sweep.group
    extension().conv_scatter(*shape, pointer(dy), pointer(values), pointer(dx), num_threads())


def _sparse_gradient(conv: Conv, x: Tensor, dy: Tensor, dv: Tensor) -> None:
    way = plan.forward(conv, *x.shape[1:], "sparse", x.element_size())
    (only,) = way.passes
    sweep = only.sweep
    planes = _planes(way.planes, x)
    shape = way.planes.native, sweep.native, only.output
    at = _at(planes), _at(dy), pointer(dv), *_dot(x)
    _op("conv_gradient", x)(*shape, *at, num_threads())


def _apply(way: Direction, values: Tensor, x: Tensor, bias: Tensor | None, y: Tensor) -> None:
    planes = _planes(way.planes, x)
    start = 0 if bias is None else pointer(bias)
    for step in way.passes:
        dense = isinstance(step.sweep, DenseSweep)
        run = _op("conv_dense_apply" if dense else "conv_apply", x)
        rounded = not dense and x.dtype == torch.bfloat16
        weights = (_rounded if rounded else _ordered)(step.sweep, values)
        at = _at(planes), _at(weights), start, _at(y) + y.element_size() * step.offset
        how = () if dense else _dot(x)
        run(way.planes.native, step.sweep.native, step.output, *at, *how, num_threads())


def _winograd(
    conv: Conv,
    values: Tensor,
    x: Tensor,
    bias: Tensor | None,
    y: Tensor,
    padding: tuple[int, int],
    order: Any,
) -> None:
    """`order`: a ConvFilter, how rows, channels and taps lie in the weight."""
    full = conv.bitmap.nnz == conv.bitmap.segments.numel
    weight = values if full else unpack(values, conv.bitmap)
    at = _at(x), pointer(weight), 0 if bias is None else pointer(bias), _at(y)
    _op("conv_winograd", x)(_images(x, y, padding), order, *at, num_threads())


@lru_cache(maxsize=256)
def _filter(rows: int, channels: int, row_size: int, channel_size: int, *, flip: bool) -> Any:
    """ConvFilter of csrc/layers/conv.h"""
    sizes = {"row_size": row_size, "channel_size": channel_size}
    return extension().ConvFilter(rows=rows, channels=channels, **sizes, flip=flip)


def _images(x: Tensor, y: Tensor, padding: tuple[int, int]) -> Any:
    return _images_of(*x.shape[1:], *y.shape[1:3], *padding)


@lru_cache(maxsize=256)
def _images_of(
    height: int, width: int, batch: int, out_height: int, out_width: int, top: int, left: int
) -> Any:
    """ConvImages of csrc/layers/conv.h"""
    output = {"out_height": out_height, "out_width": out_width}
    return extension().ConvImages(height=height, width=width, batch=batch, **output, top=top, left=left)


def _planes(planes: Planes, x: Tensor) -> Tensor:
    if planes.is_input:
        return x
    out = memory.empty((planes.size,), x)
    _op("conv_planes", x)(planes.native, _at(x), _at(out), num_threads())
    return out


def _ordered(sweep: Sweep | DenseSweep, values: Tensor) -> Tensor:
    """The values in the order of the sweep; the dense one has zeros where nothing is stored."""
    if sweep.index is None:
        return values
    out = memory.empty((sweep.index.numel(),), values)
    index = pointer(sweep.index, torch.int32), sweep.index.numel()
    extension().conv_gather(pointer(values), *index, pointer(out), num_threads())
    return out


def _rounded(sweep: Sweep | DenseSweep, values: Tensor) -> Tensor:
    """The values in the order of the sweep, as bfloat16."""
    count = values.numel() if sweep.index is None else sweep.index.numel()
    out = memory.empty((count,), values.new_empty(0, dtype=torch.bfloat16))
    index = 0 if sweep.index is None else pointer(sweep.index, torch.int32)
    extension().conv_gather_bf16(pointer(values), index, count, _at(out), num_threads())
    return out
