"""Native drift."""

import torch
from torch import Tensor

from sparsefl.kernels.layout import Packed
from sparsefl.kernels.native import extension, num_threads, placement, pointer
from sparsefl.kernels.registry import register


@register("drift", "cpu")
def drift(a: Packed, b: Packed, squares: Tensor) -> None:
    placed = placement(a.bitmap.segments)
    extension().drift(*_side(a), *_side(b), *placed, pointer(squares, torch.float64), num_threads())


def _side(model: Packed) -> tuple[int, int, int, int]:
    bitmap, values = model
    return (
        pointer(bitmap.words, torch.int64),
        pointer(values),
        pointer(bitmap.offsets, torch.int64),
        values.numel(),
    )
