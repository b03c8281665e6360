"""Autograd over the sparse kernels.

    conv2d   y = x * w + b     backward: dx by the transposed pattern, dv on the stored entries, db by summing
    linear   the same with a 1x1 kernel on a 1x1 image

Images are [N, C, H, W] in any memory order; results are batch-last (sparse_engine/nn/batch_last.py). Those of
a bf16 network (sparse_engine/nn/precision.py) are bfloat16; values, biases and their gradients stay float32.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sparse_engine.choice import plan, products
from sparse_engine.nn import precision
from sparse_engine.nn.batch_last import to_images, to_planes
from sparsefl.kernels import bitmap, native, sparse_conv
from sparsefl.kernels.pack import pack, unpack
from sparsefl.kernels.sparse_conv import Conv
from sparsefl.kernels.transpose import transpose

# Receives the dense gradient of a weight, in the weight's shape, while backward passes its layer.
Watcher = Callable[[Tensor], None]


def conv2d(
    x: Tensor, values: Tensor, conv: Conv, bias: Tensor | None = None, watch: Watcher | None = None
) -> Tensor:
    """Return the convolution of images [N, C, H, W] with the packed `values` of `conv`, as images."""
    with _ourselves():
        return _conv2d(x, values, conv, bias, watch)


def _conv2d(x: Tensor, values: Tensor, conv: Conv, bias: Tensor | None, watch: Watcher | None) -> Tensor:
    if x.dim() != 4:
        raise ValueError(f"expected images [N, C, H, W], got {tuple(x.shape)}")
    if precision.is_bf16():
        x = x.to(torch.bfloat16)
    elif torch.is_autocast_enabled(x.device.type):  # layers before may be dense: half precision
        x = x.to(values.dtype)
    return to_images(_Conv2d.apply(to_planes(x), values, bias, conv, watch))


def linear(
    x: Tensor, values: Tensor, conv: Conv, bias: Tensor | None = None, watch: Watcher | None = None
) -> Tensor:
    """Return x [..., in] times the transposed sparse weight [out, in], plus bias: [..., out], features first
    in memory, as they are computed."""
    with _ourselves():
        return _linear(x, values, conv, bias, watch)


def _linear(x: Tensor, values: Tensor, conv: Conv, bias: Tensor | None, watch: Watcher | None) -> Tensor:
    if precision.is_bf16():  # sums of a few columns: in float32, and rounded
        with precision.running("fp32"), _without_autocast(x):
            return _linear(x.float(), values, conv, bias, watch).to(torch.bfloat16)
    if torch.is_autocast_enabled(x.device.type):
        x = x.to(values.dtype)
    shape, count = (*x.shape[:-1], conv.out_channels), prod(x.shape[:-1])
    if _is_native(x) and watch is None and products.dense_pays(conv, count):
        small = conv.shape.numel() <= products.SMALL
        product = _small_product if small else _DenseProduct.apply
        return product(x.reshape(count, x.shape[-1]), values, bias, conv).view(shape)
    if x.is_contiguous() and _by_rows(rows := x.view(count, x.shape[-1])):
        return _RowProduct.apply(rows, values, bias, conv, watch).view(shape)
    planes = x.movedim(-1, 0).reshape(x.shape[-1], count).contiguous()
    y = _Conv2d.apply(planes.view(len(planes), 1, 1, count), values, bias, conv, watch)
    return y.view(conv.out_channels, *x.shape[:-1]).movedim(0, -1)


def _ourselves() -> AbstractContextManager[Any]:
    """What a sparse layer calls is nobody else's business: within a network, sparse_engine/nn/intercept.py
    sees every torch function, and at 1 to 3 us each that was a third of a small layer."""
    return torch._C.DisableTorchFunction()


def _is_native(x: Tensor) -> bool:
    return x.dtype == torch.float32 and x.is_cpu and native.built()


def _by_rows(x: Tensor) -> bool:
    """Whether a matrix [rows, columns] lies in memory row by row, where a native kernel can turn it over."""
    return x.is_contiguous() and min(x.shape) > 1 and _is_native(x)


def _without_autocast(x: Tensor) -> AbstractContextManager[Any]:
    """Sparse layers compute in the precision of their weights, wherever they are."""
    kind = x.device.type
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()


def _small_product(x: Tensor, values: Tensor, bias: Tensor | None, conv: Conv) -> Tensor:
    """y = x W^T + b in torch's own functions: where a layer is all calls, a Function of ours is too many."""
    size = conv.shape.numel()
    if conv.bitmap.nnz == size:
        w = values
    else:
        at = conv.plans.plan("stored places", lambda: bitmap.to_mask(conv.bitmap).nonzero().view(-1))
        w = values.new_zeros(size).index_copy_(0, at, values)
    with _without_autocast(x):
        return torch.nn.functional.linear(x, w.view(conv.out_channels, conv.in_channels), bias)


class _RowProduct(torch.autograd.Function):
    """y = x W^T + b of rows x that lie one after the other, turned over natively. One function, since each
    costs its call."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, values: Tensor, bias: Tensor | None, conv: Conv, watch: Watcher | None
    ) -> Tensor:
        planes = _features_first(x)
        ctx.conv, ctx.watch = conv, watch
        ctx.save_for_backward(planes, values)
        y = sparse_conv.forward(conv, values, planes, bias, kernel=_kernel(conv, "forward", planes))
        return y.view(len(y), -1).t()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        planes, values = ctx.saved_tensors
        dx, *rest = _gradients(ctx, planes, values, _contiguous(dy.t()[:, None, None, :]))
        return None if dx is None else transpose(dx.view(len(dx), -1)), *rest, None, None


def _features_first(rows: Tensor) -> Tensor:
    """Planes [features, 1, 1, rows] of a contiguous matrix [rows, features]."""
    return transpose(rows).view(rows.shape[1], 1, 1, -1)


class _DenseProduct(torch.autograd.Function):
    """y = x W^T + b by torch's product, where that is faster: the weight is dense while it lasts."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, values: Tensor, bias: Tensor | None, conv: Conv) -> Tensor:
        w = unpack(values, conv.bitmap).view(conv.out_channels, conv.in_channels)
        ctx.conv = conv
        ctx.save_for_backward(x, w)
        with _without_autocast(x):
            return torch.nn.functional.linear(x, w, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, w = ctx.saved_tensors
        need_x, need_values, need_bias, _ = ctx.needs_input_grad
        dx = dy @ w if need_x else None
        dv = pack((dy.t() @ x).view(-1), ctx.conv.bitmap) if need_values else None
        return dx, dv, dy.sum(0) if need_bias else None, None


class _Conv2d(torch.autograd.Function):
    """Works on planes [C, H, W, N]. The result is no view, so that a ReLU may change it in place.

    The weight gradient copies x into bordered planes once more. Those of the forward pass are not kept:
    for ResNet18 of density 0.2 and 32 images they would add 40 MB to the 85 MB of inputs that backward needs.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, values: Tensor, bias: Tensor | None, conv: Conv, watch: Watcher | None
    ) -> Tensor:
        ctx.conv, ctx.watch = conv, watch
        ctx.save_for_backward(x, values)
        return sparse_conv.forward(conv, values, x, bias, kernel=_kernel(conv, "forward", x))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, values = ctx.saved_tensors
        return *_gradients(ctx, x, values, _contiguous(dy)), None, None


def _gradients(ctx: Any, x: Tensor, values: Tensor, dy: Tensor) -> tuple[Tensor | None, ...]:
    """dx, dv and db, where they are needed, of planes x and dy."""
    need_x, need_values, need_bias, *_ = ctx.needs_input_grad
    conv, dx, dv = ctx.conv, None, None
    if need_x:
        size, kernel = (x.shape[1], x.shape[2]), _kernel(conv, "input_gradient", x)
        dx = sparse_conv.input_gradient(conv, values, dy, size, kernel=kernel)
    if ctx.watch is not None:
        dw = dense_gradient(conv, x, dy)
        ctx.watch(dw)
        dv = pack(dw.view(-1), conv.bitmap)
    elif need_values:
        dv = sparse_conv.weight_gradient(conv, x, dy, kernel=_kernel(conv, "weight_gradient", x))
    db = dy.sum((1, 2, 3), dtype=values.dtype) if need_bias else None
    return dx, dv, db


def _contiguous(dy: Tensor) -> Tensor:
    """Planes [C, H, W, N] as they are, or copied: of a linear layer they may be rows [N, C]."""
    if dy.shape[1:3] == (1, 1) and not dy.is_contiguous() and _by_rows(rows := dy[:, 0, 0, :].t()):
        return transpose(rows)[:, None, None, :]
    return dy.contiguous()


def _kernel(conv: Conv, direction: str, x: Tensor) -> str:
    bf16 = x.dtype == torch.bfloat16
    return plan.current().kernel(conv, direction, x.shape[1], x.shape[2], x.shape[3], bf16)


def dense_gradient(conv: Conv, x: Tensor, dy: Tensor) -> Tensor:
    """The gradient of every entry, stored or not, in the weight's shape; x and dy are planes [C, H, W, N]."""
    full = full_conv(tuple(conv.shape), conv.stride, conv.padding, conv.dilation, x.device)
    kernel = _kernel(full, "weight_gradient", x)
    return sparse_conv.weight_gradient(full, x, dy, kernel=kernel).view(conv.shape)


@lru_cache(maxsize=128)
def full_conv(
    shape: tuple[int, ...],
    stride: int,
    padding: tuple[int, int],
    dilation: tuple[int, int],
    device: torch.device,
    groups: int = 1,
) -> Conv:
    """The convolution that stores every entry of a weight `shape` [out, in, height, width]. Layers that are
    alike share one and its plans; those that were not used for long are dropped.

    groups: outputs of group g see the inputs of group g alone: blocks of a weight with `groups` times as many
    inputs, whose stored entries lie in the order of the dense ones.
    """
    out, into, height, width = shape
    if groups == 1:
        every = bitmap.full((prod(shape),), device)
    else:
        blocks = torch.eye(groups, dtype=torch.bool, device=device)
        block = torch.ones(out // groups, into * height * width, dtype=torch.bool, device=device)
        every = bitmap.from_mask(torch.kron(blocks, block).reshape(-1))
    return Conv(every, out, groups * into, (height, width), stride, padding, dilation)
