"""What a sparse convolution is: the pattern of its weight, and its geometry."""

from dataclasses import dataclass, field

import torch

from sparsefl.kernels.layout import Bitmap
from sparsefl.kernels.sparse_conv.plans import Plans


class Shaped:
    """What a geometry tells: sizes of weights and images."""

    out_channels: int
    in_channels: int
    kernel: tuple[int, int]
    stride: int
    padding: tuple[int, int]
    dilation: tuple[int, int]

    @property
    def shape(self) -> torch.Size:
        return torch.Size((self.out_channels, self.in_channels, *self.kernel))

    @property
    def taps(self) -> int:
        return self.kernel[0] * self.kernel[1]

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


@dataclass(frozen=True)
class Geometry(Shaped):
    """A convolution without its pattern: all that planes, and the choice of a kernel, depend on."""

    out_channels: int
    in_channels: int
    kernel: tuple[int, int] = (1, 1)
    stride: int = 1
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    density: float = 1.0


@dataclass(frozen=True, eq=False)
class Conv(Shaped):
    """A convolution's pattern and geometry. Backends keep what they derive from it in `plans`."""

    bitmap: Bitmap  # of one weight [out_channels, in_channels, *kernel]
    out_channels: int
    in_channels: int
    kernel: tuple[int, int] = (1, 1)
    stride: int = 1
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    plans: Plans = field(default_factory=Plans, repr=False)

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
    def density(self) -> float:
        return self.bitmap.nnz / max(1, self.bitmap.segments.numel)
