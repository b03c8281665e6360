"""Native mask-weighted average."""

from array import array
from collections.abc import Sequence

import torch
from torch import Tensor

from sparsefl.kernels.layout import Bitmap, Packed
from sparsefl.kernels.native import extension, num_threads, pointer
from sparsefl.kernels.registry import register


@register("masked_average", "cpu")
def masked_average(mask: Bitmap, models: list[Packed], out: Tensor) -> None:
    words = pointer(mask.words, torch.int64), mask.words.numel()
    pointer(models[0].values)  # the others have its dtype and device
    given = []
    for bitmap, values in models:
        given += bitmap.words.data_ptr(), values.data_ptr(), values.numel()
    extension().masked_average(*words, given, pointer(out), out.numel(), num_threads())


@register("mean", "cpu")
def mean(tensors: Sequence[Tensor], out: Tensor) -> None:
    pointer(tensors[0])  # the others have its dtype and device
    each = array("Q", [x.data_ptr() for x in tensors])
    extension().mean(each.buffer_info()[0], len(each), pointer(out), out.numel(), num_threads())
