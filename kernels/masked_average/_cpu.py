"""Native mask-weighted average."""

import torch
from torch import Tensor

from sparsefl.kernels.layout import Bitmap, Packed
from sparsefl.kernels.native import extension, num_threads, pointer
from sparsefl.kernels.registry import register


@register("masked_average", "cpu")
def masked_average(mask: Bitmap, models: list[Packed], out: Tensor) -> None:
    extension().masked_average(
        pointer(mask.words, torch.int64),
        mask.words.numel(),
        [pointer(model.bitmap.words, torch.int64) for model in models],
        [pointer(model.values) for model in models],
        [model.values.numel() for model in models],
        pointer(out),
        out.numel(),
        num_threads(),
    )
