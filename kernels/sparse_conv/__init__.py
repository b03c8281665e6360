"""Sparse 2-d convolution on batch-last tensors, and its two gradients.

    y[o, h, w, n]  = bias[o] + sum over stored (o, c, i, j) of  v * x[c, h s + i d - p, w s + j d - p, n]
    dx             = the same sum, transposed
    dv             = sum over h, w, n of  dy[o, h, w, n] * x[c, h s + i d - p, w s + j d - p, n]

x, y: contiguous [channels, height, width, batch]. v: the packed values of the weight [out, in, kh, kw].
x and y may be bfloat16: then v, dv, bias and all sums are float32.
A linear layer is a 1x1 convolution of a 1x1 image.

A backend may have several kernels. `kernel` names one of candidates(conv); without it, `suggest` chooses.
Only the native backend has a choice (_cpu_choice.py); the others have one kernel for every name.
"""

import torch
from torch import Tensor

from sparsefl.kernels import checks, memory, registry
from sparsefl.kernels.sparse_conv._cpu_choice import KERNELS, NATIVE, candidates, joined, split, suggest
from sparsefl.kernels.sparse_conv.conv import Conv, Geometry

__all__ = [
    "DIRECTIONS",
    "KERNELS",
    "NATIVE",
    "Conv",
    "Geometry",
    "candidates",
    "forward",
    "input_gradient",
    "joined",
    "split",
    "suggest",
    "weight_gradient",
]

_call = registry.bind(__name__)
DIRECTIONS = ("forward", "input_gradient", "weight_gradient")


def forward(
    conv: Conv, values: Tensor, x: Tensor, bias: Tensor | None = None, *, kernel: str | None = None
) -> Tensor:
    """Return y [out, height, width, batch]."""
    _check(conv, values=values)
    _check_image(conv.in_channels, x=x)
    checks.same_precision(x, values=values, bias=bias)
    height, width = conv.output_size(*x.shape[1:3])
    if bias is not None:
        checks.flat(bias=bias)
        checks.length(conv.out_channels, "biases", bias=bias)
    y = memory.empty((conv.out_channels, height, width, x.shape[3]), x)
    if y.numel():
        kernel = _chosen(kernel, conv, "forward", x.shape, x.dtype == torch.bfloat16)
        _call("conv_forward", x.device, conv, values, x, bias, y, kernel)
    return y


def input_gradient(
    conv: Conv, values: Tensor, dy: Tensor, size: tuple[int, int], *, kernel: str | None = None
) -> Tensor:
    """Return dx [in, *size, batch]."""
    _check(conv, values=values)
    _check_image(conv.out_channels, dy=dy)
    checks.same_precision(dy, values=values)
    _check_size(conv, dy, size)
    dx = memory.empty((conv.in_channels, *size, dy.shape[3]), dy)
    if dx.numel():
        kernel = _chosen(kernel, conv, "input_gradient", dx.shape, dx.dtype == torch.bfloat16)
        _call("conv_input_gradient", dy.device, conv, values, dy, dx, kernel)
    return dx


def weight_gradient(conv: Conv, x: Tensor, dy: Tensor, *, kernel: str | None = None) -> Tensor:
    """Return dv, packed like the values."""
    _check_image(conv.in_channels, x=x)
    _check_image(conv.out_channels, dy=dy)
    checks.same_dtype(x=x, dy=dy)
    _check_size(conv, dy, (x.shape[1], x.shape[2]))
    if x.shape[3] != dy.shape[3]:
        raise ValueError(f"expected one batch size, got x {x.shape[3]} and dy {dy.shape[3]}")
    dv = memory.empty((conv.bitmap.nnz,), sums_like(x))
    if not dy.numel():
        dv.zero_()
    elif dv.numel():
        kernel = _chosen(kernel, conv, "weight_gradient", x.shape, x.dtype == torch.bfloat16)
        _call("conv_weight_gradient", x.device, conv, x, dy, dv, kernel)
    return dv


def sums_like(x: Tensor) -> Tensor:
    """An empty tensor of the dtype and device that sums over x have."""
    return x.new_empty(0, dtype=torch.float32) if x.dtype == torch.bfloat16 else x


def _chosen(kernel: str | None, conv: Conv, direction: str, image: torch.Size, bf16: bool) -> str:
    if kernel is None:
        height, width, batch = image[1:]
        return suggest(conv, direction, height, width, batch, bf16=bf16)
    if kernel not in candidates(conv):
        raise ValueError(f"expected a kernel of {candidates(conv)} for this convolution, got {kernel!r}")
    return kernel


def _check(conv: Conv, values: Tensor) -> None:
    checks.flat(values=values)
    checks.length(conv.bitmap.nnz, "packed values in the bitmap", values=values)


def _check_image(channels: int, **image: Tensor) -> None:
    (name, x), *_ = image.items()
    if x.dim() != 4 or x.shape[0] != channels:
        raise ValueError(f"expected {name} as [{channels}, height, width, batch], got {tuple(x.shape)}")
    checks.dtype(*checks.IMAGES, **image)
    checks.contiguous(**image)


def _check_size(conv: Conv, dy: Tensor, size: tuple[int, int]) -> None:
    if conv.output_size(*size) != tuple(dy.shape[1:3]):
        wanted, got = conv.output_size(*size), tuple(dy.shape[1:3])
        raise ValueError(f"expected dy of {wanted} for an image of {tuple(size)}, got {got}")
