"""Native pooling."""

import torch
from torch import Tensor

from sparsefl.kernels.native import extension, num_threads, pointer
from sparsefl.kernels.pool import Maxima, Window
from sparsefl.kernels.registry import register


@register("max_pool", "cpu")
def max_pool(window: Window, x: Tensor, out: Maxima) -> None:
    index = _index(out.tap)
    extension().max_pool(_shape(window, x, out.y), pointer(x), pointer(out.y), *index, num_threads())


@register("max_pool_backward", "cpu")
def max_pool_backward(window: Window, dy: Tensor, index: Tensor, dx: Tensor) -> None:
    given = pointer(dy), *_index(index)
    extension().max_pool_backward(_shape(window, dx, dy), *given, pointer(dx), num_threads())


@register("average_pool", "cpu")
def average_pool(window: Window | None, x: Tensor, y: Tensor) -> None:
    extension().average_pool(_shape(window, x, y), pointer(x), pointer(y), num_threads())


@register("average_pool_backward", "cpu")
def average_pool_backward(window: Window | None, dy: Tensor, dx: Tensor) -> None:
    extension().average_pool_backward(_shape(window, dx, dy), pointer(dy), pointer(dx), num_threads())


def _shape(window: Window | None, x: Tensor, y: Tensor) -> list[int]:
    """csrc/ops.h: PoolShape; kernel 0 is adaptive"""
    shape = [x.shape[0], x.shape[3]]
    for i in (0, 1):
        how = (window.kernel[i], window.stride[i], window.padding[i]) if window else (0, 1, 0)
        shape += [x.shape[1 + i], y.shape[1 + i], *how]
    return shape


def _index(index: Tensor) -> tuple[int, int]:
    """As bytes, or as words"""
    if index.dtype == torch.uint8:
        return pointer(index, torch.uint8), 0
    return 0, pointer(index, torch.int32)
