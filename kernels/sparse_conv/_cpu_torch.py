"""PyTorch's dense convolution as a kernel: the whole weight, zeros where nothing is stored.

A 1x1 kernel of stride 1 (a linear layer too) is one matrix product on batch-last memory as it lies. Other
images are turned over, [C, H, W, N] to [N, C, H, W], and their results back; that is part of its time.
bfloat16 images meet a weight rounded to bfloat16.
"""

import torch
from torch import Tensor

from sparsefl.kernels.pack import pack, unpack
from sparsefl.kernels.sparse_conv.conv import Conv
from sparsefl.kernels.transpose import transpose


def forward(conv: Conv, values: Tensor, x: Tensor, bias: Tensor | None, y: Tensor) -> None:
    w, bias = _weight(conv, values).to(x.dtype), None if bias is None else bias.to(x.dtype)
    if _is_product(conv):
        planes, to = _matrix(x), _matrix(y)
        if bias is None:
            torch.mm(w.view(conv.shape[:2]), planes, out=to)
        else:
            torch.addmm(bias[:, None], w.view(conv.shape[:2]), planes, out=to)
    else:
        how = conv.stride, conv.padding, conv.dilation
        _put(torch.nn.functional.conv2d(_images(x), w, bias, *how), y)


def input_gradient(conv: Conv, values: Tensor, dy: Tensor, dx: Tensor) -> None:
    w = _weight(conv, values).to(dy.dtype)
    if _is_product(conv):
        torch.mm(w.view(conv.shape[:2]).t(), _matrix(dy), out=_matrix(dx))
    else:
        like = dx.new_empty(()).expand(dx.shape[3], *dx.shape[:3])  # its shape alone counts
        _put(_backward(conv, _images(dy), like, w, (True, False))[0], dx)


def weight_gradient(conv: Conv, x: Tensor, dy: Tensor, dv: Tensor) -> None:
    if _is_product(conv):
        dw = torch.mm(_matrix(dy), _matrix(x).t())
    else:
        like = x.new_empty(()).expand(conv.shape)
        dw = _backward(conv, _images(dy), _images(x), like, (False, True))[1]
    dw = dw.reshape(-1)
    if conv.bitmap.nnz == dw.numel():
        dv.copy_(dw)
    else:
        pack(dw.to(dv.dtype), conv.bitmap, dv)


def _backward(
    conv: Conv, dy: Tensor, x: Tensor, weight: Tensor, wanted: tuple[bool, bool]
) -> tuple[Tensor, Tensor]:
    how = [conv.stride] * 2, conv.padding, conv.dilation, False, [0, 0], 1
    found = torch.ops.aten.convolution_backward(dy, x, weight, None, *how, [*wanted, False])
    return found[0], found[1]


def _is_product(conv: Conv) -> bool:
    return conv.kernel == (1, 1) and conv.stride == 1 and conv.padding == (0, 0)


def _weight(conv: Conv, values: Tensor) -> Tensor:
    full = conv.bitmap.nnz == conv.bitmap.segments.numel
    return (values if full else unpack(values, conv.bitmap)).view(conv.shape)


def _matrix(planes: Tensor) -> Tensor:
    """[C, H, W, N] as [C, H W N]"""
    return planes.view(planes.shape[0], -1)


def _images(planes: Tensor) -> Tensor:
    """[C, H, W, N] as contiguous [N, C, H, W]"""
    channels, height, width, batch = planes.shape
    rows = planes.view(-1, batch)
    return (rows if batch == 1 else _turned(rows)).view(batch, channels, height, width)


def _put(images: Tensor, planes: Tensor) -> None:
    """[N, C, H, W] into [C, H, W, N]"""
    rows = images.contiguous().view(planes.shape[3], -1)
    planes.view(rows.shape[1], -1).copy_(rows.t() if len(rows) == 1 else _turned(rows))


def _turned(rows: Tensor) -> Tensor:
    return transpose(rows) if rows.dtype == torch.float32 else rows.t().contiguous()
