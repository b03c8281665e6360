"""Pooling of batch-last tensors [channels, height, width, batch], and its gradients.

    max       y = the largest x of the window, outside the image -inf; index: its tap, the first of equals
    average   y = sum of x / (kernel height * width), outside the image 0: padding counts
    adaptive  y = mean of x; output i of n sees inputs floor(i size / n) to ceil((i + 1) size / n)

dx: what a window got goes to its maximum, or to all its inputs in equal shares.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from sparsefl.kernels import checks, memory, registry

_call = registry.bind(__name__)
Pair = tuple[int, int]


@dataclass(frozen=True)
class Window:
    """Windows of size `kernel`, `stride` apart; (height, width) each."""

    kernel: Pair
    stride: Pair
    padding: Pair = (0, 0)

    def __post_init__(self) -> None:
        if min(*self.kernel, *self.stride) < 1 or min(self.padding) < 0:
            raise ValueError(
                "expected kernel and stride from 1 and padding from 0, "
                f"got {self.kernel}, {self.stride} and {self.padding}"
            )
        if any(2 * p > k for p, k in zip(self.padding, self.kernel, strict=True)):
            raise ValueError(f"expected padding up to half the kernel {self.kernel}, got {self.padding}")

    @classmethod
    def of(cls, kernel: int | Pair, stride: int | Pair | None = None, padding: int | Pair = 0) -> "Window":
        """Return the window of torch's arguments: one number for both axes; stride None: the kernel."""
        return cls(_pair(kernel), _pair(kernel if stride is None else stride), _pair(padding))

    @property
    def index_dtype(self) -> torch.dtype:
        """What holds a tap of the window."""
        return torch.uint8 if self.kernel[0] * self.kernel[1] <= 256 else torch.int32

    def output_size(self, height: int, width: int) -> Pair:
        size = [
            (n + 2 * p - k) // s + 1
            for n, k, s, p in zip((height, width), self.kernel, self.stride, self.padding, strict=True)
        ]
        if min(size) < 1:
            raise ValueError(
                f"expected an image that the {self.kernel} window fits into, got {height}x{width}"
            )
        return size[0], size[1]


class Maxima(NamedTuple):
    """y, and for backward which tap of the window it was: `Window.index_dtype`, like y."""

    y: Tensor
    tap: Tensor


def max_pool(window: Window, x: Tensor) -> Maxima:
    _check(x=x)
    y = _output(x, window.output_size(x.shape[1], x.shape[2]))
    out = Maxima(y, memory.plain(y.shape, window.index_dtype, y.device))
    if y.numel():
        _call("max_pool", x.device, window, x, out)
    return out


def max_pool_backward(window: Window, dy: Tensor, index: Tensor, size: Pair) -> Tensor:
    """dx [channels, *size, batch]; size: (height, width) of x."""
    _check(dy=dy)
    _check_size(window.output_size(*size), dy, size)
    checks.same_shape(dy=dy, index=index)
    checks.same_device(dy=dy, index=index)
    checks.contiguous(index=index)
    checks.dtype(window.index_dtype, index=index)
    dx = _output(dy, size)
    if dx.numel():
        _call("max_pool_backward", dy.device, window, dy, index, dx)
    return dx


def average_pool(window: Window, x: Tensor) -> Tensor:
    _check(x=x)
    y = _output(x, window.output_size(x.shape[1], x.shape[2]))
    if y.numel():
        _call("average_pool", x.device, window, x, y)
    return y


def average_pool_backward(window: Window, dy: Tensor, size: Pair) -> Tensor:
    """dx [channels, *size, batch]; size: (height, width) of x."""
    _check(dy=dy)
    _check_size(window.output_size(*size), dy, size)
    dx = _output(dy, size)
    if dx.numel():
        _call("average_pool_backward", dy.device, window, dy, dx)
    return dx


def adaptive_average_pool(x: Tensor, output_size: int | Pair) -> Tensor:
    _check(x=x)
    size = _pair(output_size)
    if min(*size, *x.shape[1:3]) < 1:
        raise ValueError(f"expected sizes from 1, got output {size} of an image {tuple(x.shape[1:3])}")
    y = _output(x, size)
    if y.numel():
        _call("average_pool", x.device, None, x, y)
    return y


def adaptive_average_pool_backward(dy: Tensor, size: Pair) -> Tensor:
    """dx [channels, *size, batch]; size: (height, width) of x."""
    _check(dy=dy)
    if min(*size, *dy.shape[1:3]) < 1:
        raise ValueError(f"expected sizes from 1, got an image {tuple(size)} for dy {tuple(dy.shape[1:3])}")
    dx = _output(dy, size)
    if dx.numel():
        _call("average_pool_backward", dy.device, None, dy, dx)
    return dx


def _pair(value: int | Pair) -> Pair:
    pair = (value, value) if isinstance(value, int) else tuple(value)
    if len(pair) != 2:
        raise ValueError(f"expected one number or two, got {value!r}")
    return pair[0], pair[1]


def _output(x: Tensor, size: Pair) -> Tensor:
    return memory.empty((x.shape[0], *size, x.shape[3]), x)


def _check(**image: Tensor) -> None:
    (name, x), *_ = image.items()
    if x.dim() != 4:
        raise ValueError(f"expected {name} as [channels, height, width, batch], got {tuple(x.shape)}")
    checks.dtype(*checks.FLOATS, **image)
    checks.contiguous(**image)


def _check_size(wanted: Pair, dy: Tensor, size: Pair) -> None:
    if wanted != tuple(dy.shape[1:3]):
        got = tuple(dy.shape[1:3])
        raise ValueError(f"expected dy of {wanted} for an image of {tuple(size)}, got {got}")
