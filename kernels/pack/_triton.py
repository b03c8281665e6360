"""Packing by the shared kernels of `tile`."""

from torch import Tensor

from sparsefl.kernels import tile
from sparsefl.kernels.layout import Bitmap
from sparsefl.kernels.registry import register


@register("pack", "triton")
def pack(dense: Tensor, bitmap: Bitmap, out: Tensor) -> None:
    tile.float32(dense=dense)
    tile.pack(dense, bitmap, out)


@register("unpack", "triton")
def unpack(values: Tensor, bitmap: Bitmap, out: Tensor) -> None:
    tile.float32(values=values)
    tile.unpack(values, bitmap, out)
