"""Native drift."""

import torch
from torch import Tensor

from sparsefl.kernels.layout import Packed
from sparsefl.kernels.native import extension, num_threads, packed, placement, pointer
from sparsefl.kernels.registry import register


@register("drift", "cpu")
def drift(a: Packed, b: Packed, squares: Tensor) -> None:
    offsets = [pointer(model.bitmap.offsets, torch.int64) for model in (a, b)]
    placed, into = placement(a.bitmap.segments), pointer(squares, torch.float64)
    extension().drift(packed(a), packed(b), *offsets, placed, into, num_threads())
