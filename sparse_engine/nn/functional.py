"""Autograd over the sparse kernels.

    conv2d   y = x * w + b     backward: dx by the transposed pattern, dv on the stored entries, db by summing
    linear   the same with a 1x1 kernel on a 1x1 image

Images are [N, C, H, W] in any memory order; results are batch-last (sparse_engine/nn/batch_last.py).
"""

from collections.abc import Callable
from functools import lru_cache
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sparse_engine.choice import plan
from sparse_engine.nn.batch_last import to_images, to_planes
from sparsefl.kernels import bitmap, sparse_conv
from sparsefl.kernels.pack import pack
from sparsefl.kernels.sparse_conv import Conv

# Receives the dense gradient of a weight, in the weight's shape, while backward passes its layer.
Watcher = Callable[[Tensor], None]


def conv2d(
    x: Tensor, values: Tensor, conv: Conv, bias: Tensor | None = None, watch: Watcher | None = None
) -> Tensor:
    """Return the convolution of images [N, C, H, W] with the packed `values` of `conv`, as images."""
    if x.dim() != 4:
        raise ValueError(f"expected images [N, C, H, W], got {tuple(x.shape)}")
    if torch.is_autocast_enabled(x.device.type):  # layers before may be dense, and give half precision there
        x = x.to(values.dtype)
    return to_images(_Conv2d.apply(to_planes(x), values, bias, conv, watch))


def linear(
    x: Tensor, values: Tensor, conv: Conv, bias: Tensor | None = None, watch: Watcher | None = None
) -> Tensor:
    """Return x [..., in] times the transposed sparse weight [out, in], plus bias: [..., out]."""
    images = x.reshape(-1, x.shape[-1])[:, :, None, None]
    return conv2d(images, values, conv, bias, watch)[:, :, 0, 0].view(*x.shape[:-1], conv.out_channels)


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
        need_x, need_values, need_bias, *_ = ctx.needs_input_grad
        dy = dy.contiguous()
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
        db = dy.sum((1, 2, 3)) if need_bias else None
        return dx, dv, db, None, None


def _kernel(conv: Conv, direction: str, x: Tensor) -> str:
    return plan.current().kernel(conv, direction, x.shape[1], x.shape[2], x.shape[3])


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
) -> Conv:
    """The convolution that stores every entry of a weight `shape` [out, in, height, width]. Layers that are
    alike share one and its plans; those that were not used for long are dropped."""
    out, into, height, width = shape
    every = bitmap.full((prod(shape),), device)
    return Conv(every, out, into, (height, width), stride, padding, dilation)
