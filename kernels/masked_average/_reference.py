"""Plain torch: the specification of the mask-weighted average."""

from collections.abc import Sequence

import torch
from torch import Tensor

from sparsefl.kernels.layout import Bitmap, Packed
from sparsefl.kernels.reference import dense_mask
from sparsefl.kernels.registry import register


@register("masked_average", "reference")
def masked_average(mask: Bitmap, models: list[Packed], out: Tensor) -> None:
    total = torch.zeros(mask.segments.numel, dtype=out.dtype, device=out.device)
    count = torch.zeros_like(total)
    for bitmap, values in models:
        support = dense_mask(bitmap.words, bitmap.segments)
        total[support] += values
        count += support
    mean = total / count.clamp(min=1)
    out.copy_(mean[dense_mask(mask.words, mask.segments)])


@register("mean", "reference")
def mean(tensors: Sequence[Tensor], out: Tensor) -> None:
    out.copy_(tensors[0])
    for x in tensors[1:]:
        out.add_(x)
    out.div_(len(tensors))
