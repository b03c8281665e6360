"""Sparse 2-d convolution on batch-last tensors, and its two gradients.

    y[o, h, w, n]  = bias[o] + sum over stored (o, c, i, j) of  v * x[c, h s + i d - p, w s + j d - p, n]
    dx             = the same sum, transposed
    dv             = sum over h, w, n of  dy[o, h, w, n] * x[c, h s + i d - p, w s + j d - p, n]

x, y: contiguous [channels, height, width, batch]. v: the packed values of the weight [out, in, kh, kw].
A linear layer is a 1x1 convolution of a 1x1 image.

Natively there are three kernels. `sparse` touches stored entries only. `dense` and `winograd` multiply by the
whole weight, zeros where nothing is stored: for layers that masks leave full or nearly so. `winograd` (3x3
kernel, stride 1, undilated) needs a quarter of the multiplications, so it wins far below density 1. The
kernel is an argument; without one, `suggest` tells.
"""

from dataclasses import dataclass, field
from math import ceil
from typing import Any

import torch
from torch import Tensor

from sparsefl.kernels import checks, memory, registry
from sparsefl.kernels.layout import Bitmap

_call = registry.bind(__name__)
KERNELS = ("sparse", "dense", "winograd")
DIRECTIONS = ("forward", "input_gradient", "weight_gradient")
DENSE_FROM = 0.85  # stored share from which the dense kernel is the faster one
# The same for Winograd's, if its 4x4 tiles were full: a share, and another over the columns of its products
# (tiles times images), because transforming the weight costs the same however few they are.
WINOGRAD_FROM = {"forward": (0.22, 6), "input_gradient": (0.22, 6), "weight_gradient": (0.24, 14)}


@dataclass(frozen=True, eq=False)
class Conv:
    """A convolution's pattern and geometry. Backends keep what they derive from it in `plans`."""

    bitmap: Bitmap  # of one weight [out_channels, in_channels, *kernel]
    out_channels: int
    in_channels: int
    kernel: tuple[int, int] = (1, 1)
    stride: int = 1
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    plans: dict[Any, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if len(self.bitmap.segments) != 1 or self.bitmap.segments.numel != self.shape.numel():
            raise ValueError(
                f"expected the bitmap of a weight {tuple(self.shape)}, got {self.bitmap.segments.sizes}"
            )
        if min(*self.shape, self.stride, *self.dilation) < 1 or min(self.padding) < 0:
            raise ValueError(
                "expected sizes, stride and dilation from 1 and padding from 0, "
                f"got {tuple(self.shape)}, {self.stride}, {self.dilation}, {self.padding}"
            )

    @property
    def shape(self) -> torch.Size:
        return torch.Size((self.out_channels, self.in_channels, *self.kernel))

    @property
    def taps(self) -> int:
        return self.kernel[0] * self.kernel[1]

    @property
    def density(self) -> float:
        return self.bitmap.nnz / max(1, self.bitmap.segments.numel)

    @property
    def candidates(self) -> tuple[str, ...]:
        """Those of KERNELS that can run it."""
        plain = self.kernel == (3, 3) and self.stride == 1 and self.dilation == (1, 1)
        return KERNELS if plain and max(self.padding) <= 2 else KERNELS[:2]

    def output_size(self, height: int, width: int) -> tuple[int, int]:
        size = [
            (n + 2 * p - d * (k - 1) - 1) // self.stride + 1
            for n, k, p, d in zip((height, width), self.kernel, self.padding, self.dilation, strict=True)
        ]
        if min(size) < 1:
            raise ValueError(
                f"expected an image that the {self.kernel} kernel fits into, got {height}x{width}"
            )
        return size[0], size[1]


def suggest(conv: Conv, direction: str, height: int, width: int, batch: int) -> str:
    """The kernel that is usually the fastest for an input image [height, width] and batch."""
    if "winograd" in conv.candidates:
        high, wide = (height, width) if direction == "input_gradient" else conv.output_size(height, width)
        tiles = max(1, ceil(high / 4) * ceil(wide / 4))
        share, more = WINOGRAD_FROM[direction]
        if conv.density * high * wide / (16 * tiles) >= share + more / (tiles * max(1, batch)):
            return "winograd"
    return "dense" if conv.density >= DENSE_FROM else "sparse"


def forward(
    conv: Conv, values: Tensor, x: Tensor, bias: Tensor | None = None, *, kernel: str | None = None
) -> Tensor:
    """y [out, height, width, batch]"""
    _check(conv, values=values)
    _check_image(conv.in_channels, x=x)
    checks.same_dtype(values=values, x=x, **({} if bias is None else {"bias": bias}))
    height, width = conv.output_size(*x.shape[1:3])
    if bias is not None:
        checks.flat(bias=bias)
        checks.length(conv.out_channels, "biases", bias=bias)
    y = memory.empty((conv.out_channels, height, width, x.shape[3]), x)
    if y.numel():
        kernel = _chosen(kernel, conv, "forward", x.shape)
        _call("conv_forward", x.device, conv, values, x, bias, y, kernel)
    return y


def input_gradient(
    conv: Conv, values: Tensor, dy: Tensor, size: tuple[int, int], *, kernel: str | None = None
) -> Tensor:
    """dx [in, *size, batch]"""
    _check(conv, values=values)
    _check_image(conv.out_channels, dy=dy)
    checks.same_dtype(values=values, dy=dy)
    _check_size(conv, dy, size)
    dx = memory.empty((conv.in_channels, *size, dy.shape[3]), dy)
    if dx.numel():
        kernel = _chosen(kernel, conv, "input_gradient", dx.shape)
        _call("conv_input_gradient", dy.device, conv, values, dy, dx, kernel)
    return dx


def weight_gradient(conv: Conv, x: Tensor, dy: Tensor, *, kernel: str | None = None) -> Tensor:
    """dv, packed like the values."""
    _check_image(conv.in_channels, x=x)
    _check_image(conv.out_channels, dy=dy)
    checks.same_dtype(x=x, dy=dy)
    _check_size(conv, dy, (x.shape[1], x.shape[2]))
    if x.shape[3] != dy.shape[3]:
        raise ValueError(f"expected one batch size, got x {x.shape[3]} and dy {dy.shape[3]}")
    dv = memory.empty((conv.bitmap.nnz,), x)
    if not dy.numel():
        dv.zero_()
    elif dv.numel():
        kernel = _chosen(kernel, conv, "weight_gradient", x.shape)
        _call("conv_weight_gradient", x.device, conv, x, dy, dv, kernel)
    return dv


def _chosen(kernel: str | None, conv: Conv, direction: str, image: torch.Size) -> str:
    if kernel is None:
        return suggest(conv, direction, *image[1:])
    if kernel not in conv.candidates:
        raise ValueError(f"expected a kernel of {conv.candidates} for this convolution, got {kernel!r}")
    return kernel


def _check(conv: Conv, values: Tensor) -> None:
    checks.flat(values=values)
    checks.length(conv.bitmap.nnz, "packed values in the bitmap", values=values)


def _check_image(channels: int, **image: Tensor) -> None:
    (name, x), *_ = image.items()
    if x.dim() != 4 or x.shape[0] != channels:
        raise ValueError(f"expected {name} as [{channels}, height, width, batch], got {tuple(x.shape)}")
    checks.dtype(*checks.FLOATS, **image)
    checks.contiguous(**image)


def _check_size(conv: Conv, dy: Tensor, size: tuple[int, int]) -> None:
    if conv.output_size(*size) != tuple(dy.shape[1:3]):
        wanted, got = conv.output_size(*size), tuple(dy.shape[1:3])
        raise ValueError(f"expected dy of {wanted} for an image of {tuple(size)}, got {got}")
