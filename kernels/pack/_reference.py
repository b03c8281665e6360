"""Plain torch: the specification of pack and unpack."""

from torch import Tensor

from sparsefl.kernels.layout import Bitmap
from sparsefl.kernels.reference import dense_mask
from sparsefl.kernels.registry import register


@register("pack", "reference")
def pack(dense: Tensor, bitmap: Bitmap, out: Tensor) -> None:
    out.copy_(dense[dense_mask(bitmap.words, bitmap.segments)])


@register("unpack", "reference")
def unpack(values: Tensor, bitmap: Bitmap, out: Tensor) -> None:
    out.zero_()
    out[dense_mask(bitmap.words, bitmap.segments)] = values
