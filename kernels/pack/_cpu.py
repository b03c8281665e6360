"""Native pack and unpack."""

from torch import Tensor

from sparsefl.kernels.layout import Bitmap
from sparsefl.kernels.native import extension, num_threads, pointer, structure
from sparsefl.kernels.registry import register


@register("pack", "cpu")
def pack(dense: Tensor, bitmap: Bitmap, out: Tensor) -> None:
    extension().pack(pointer(dense), *structure(bitmap), pointer(out), num_threads())


@register("unpack", "cpu")
def unpack(values: Tensor, bitmap: Bitmap, out: Tensor) -> None:
    extension().unpack(pointer(values), *structure(bitmap), pointer(out), num_threads())
