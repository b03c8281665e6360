"""Plain torch: the specification of pooling. Gradients by autograd, the maximum's by its index."""

import torch
from torch import Tensor
from torch.nn import functional as F

from sparsefl.kernels.pool import Maxima, Window
from sparsefl.kernels.registry import register


@register("max_pool", "reference")
def max_pool(window: Window, x: Tensor, out: Maxima) -> None:
    how = window.kernel, window.stride, window.padding
    y, flat = F.max_pool2d(_nchw(x), *how, return_indices=True)
    out.y.copy_(_batch_last(y))
    flat = _batch_last(flat)
    top, left = _corners(window, out.y)
    tap = (flat // x.shape[2] - top) * window.kernel[1] + flat % x.shape[2] - left
    out.tap.copy_(tap)


@register("max_pool_backward", "reference")
def max_pool_backward(window: Window, dy: Tensor, index: Tensor, dx: Tensor) -> None:
    height, width = dx.shape[1:3]
    top, left = _corners(window, dy)
    tap = index.long()
    flat = (top + tap // window.kernel[1]) * width + left + tap % window.kernel[1]
    planes = dx.zero_().view(dx.shape[0], height * width, dx.shape[3])
    planes.scatter_add_(1, flat.flatten(1, 2), dy.flatten(1, 2))


@register("average_pool", "reference")
def average_pool(window: Window | None, x: Tensor, y: Tensor) -> None:
    y.copy_(_batch_last(_average(window, _nchw(x), y.shape[1:3])))


@register("average_pool_backward", "reference")
def average_pool_backward(window: Window | None, dy: Tensor, dx: Tensor) -> None:
    with torch.enable_grad():
        x = torch.zeros_like(_nchw(dx)).requires_grad_()
        (gradient,) = torch.autograd.grad(_average(window, x, dy.shape[1:3]), x, _nchw(dy))
    dx.copy_(_batch_last(gradient))


def _average(window: Window | None, x: Tensor, size: torch.Size) -> Tensor:
    if window is None:
        return F.adaptive_avg_pool2d(x, tuple(size))
    return F.avg_pool2d(x, window.kernel, window.stride, window.padding)


def _corners(window: Window, y: Tensor) -> tuple[Tensor, Tensor]:
    """Row and column of x where the window of each output begins, to broadcast over y."""
    top, left = (
        torch.arange(n, device=y.device) * s - p
        for n, s, p in zip(y.shape[1:3], window.stride, window.padding, strict=True)
    )
    return top[:, None, None], left[:, None]


def _nchw(x: Tensor) -> Tensor:
    return x.permute(3, 0, 1, 2).contiguous()


def _batch_last(x: Tensor) -> Tensor:
    return x.permute(1, 2, 3, 0)
