"""Native mask-weighted average."""

import torch
from torch import Tensor

from sparsefl.kernels.layout import Bitmap, Packed
from sparsefl.kernels.native import extension, num_threads, pointer
from sparsefl.kernels.registry import register


@register("masked_average", "cpu")
def masked_average(mask: Bitmap, models: list[Packed], out: Tensor) -> None:
    words = pointer(mask.words, torch.int64), mask.words.numel()
    given = []
    for bitmap, values in models:
        given += pointer(bitmap.words, torch.int64), pointer(values), values.numel()
    extension().masked_average(*words, given, pointer(out), out.numel(), num_threads())
