"""Native pooling."""

from functools import lru_cache
from typing import Any

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


def _shape(window: Window | None, x: Tensor, y: Tensor) -> Any:
    return _made(window, tuple(x.shape), (y.shape[1], y.shape[2]))


@lru_cache(maxsize=256)
def _made(window: Window | None, image: tuple[int, ...], output: tuple[int, int]) -> Any:
    """PoolShape (csrc/layers/shapes.h) of `image` [channels, height, width, batch]; kernel 0 is adaptive."""
    channels, height, width, batch = image
    axes = [
        extension().PoolAxis(**{"in": size}, out=out, kernel=kernel, stride=stride, padding=padding)
        for size, out, (kernel, stride, padding) in zip((height, width), output, _axes(window), strict=True)
    ]
    return extension().PoolShape(channels=channels, batch=batch, height=axes[0], width=axes[1])


def _axes(window: Window | None) -> list[tuple[int, int, int]]:
    if window is None:
        return [(0, 1, 0), (0, 1, 0)]
    return list(zip(window.kernel, window.stride, window.padding, strict=True))


def _index(index: Tensor) -> tuple[int, int]:
    """Return the addresses of an index of bytes and of one of words; 0 for the one that it is not."""
    if index.dtype == torch.uint8:
        return pointer(index, torch.uint8), 0
    return 0, pointer(index, torch.int32)
