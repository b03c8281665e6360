"""Plain torch: the specification of the sparse convolution, by the dense one. There is one kernel for all."""

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn import grad

from sparsefl.kernels.reference import dense_mask
from sparsefl.kernels.registry import register
from sparsefl.kernels.sparse_conv.conv import Conv


@register("conv_forward", "reference")
def conv_forward(conv: Conv, values: Tensor, x: Tensor, bias: Tensor | None, y: Tensor, kernel: str) -> None:
    out = F.conv2d(
        _nchw(x).to(values.dtype), _weight(conv, values), bias, conv.stride, conv.padding, conv.dilation
    )
    y.copy_(out.permute(1, 2, 3, 0))


@register("conv_input_gradient", "reference")
def conv_input_gradient(conv: Conv, values: Tensor, dy: Tensor, dx: Tensor, kernel: str) -> None:
    size = (dx.shape[3], *dx.shape[:3])
    how = conv.stride, conv.padding, conv.dilation
    dx.copy_(
        grad.conv2d_input(size, _weight(conv, values), _nchw(dy).to(values.dtype), *how).permute(1, 2, 3, 0)
    )


@register("conv_weight_gradient", "reference")
def conv_weight_gradient(conv: Conv, x: Tensor, dy: Tensor, dv: Tensor, kernel: str) -> None:
    how = conv.stride, conv.padding, conv.dilation
    images = (_nchw(t).to(dv.dtype) for t in (x, dy))
    dense = grad.conv2d_weight(next(images), conv.shape, next(images), *how)
    dv.copy_(dense.reshape(-1)[dense_mask(conv.bitmap.words, conv.bitmap.segments)])


def _nchw(x: Tensor) -> Tensor:
    return x.permute(3, 0, 1, 2).contiguous()


def _weight(conv: Conv, values: Tensor) -> Tensor:
    weight = torch.zeros(conv.shape.numel(), dtype=values.dtype, device=values.device)
    weight[dense_mask(conv.bitmap.words, conv.bitmap.segments)] = values
    return weight.view(conv.shape)
