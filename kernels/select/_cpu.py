"""Native selection."""

from array import array
from collections.abc import Mapping

import torch
from torch import Tensor

from sparsefl.kernels.layout import Bitmap
from sparsefl.kernels.native import extension, num_threads, placement, pointer, structure
from sparsefl.kernels.registry import register


@register("select", "cpu")
def select(x: Tensor, candidates: Bitmap, k: Tensor, largest: bool, dense: bool, words: Tensor) -> bool:
    """Writes the chosen bits into words; False when a candidate is NaN."""
    at = pointer(x), *structure(candidates), pointer(k, torch.int64)
    return extension().select(*at, largest, dense, pointer(words, torch.int64), num_threads())


@register("grow", "cpu")
def grow(kept: Bitmap, scores: Mapping[int, Tensor], k: Tensor, words: Tensor) -> bool:
    """False when a candidate is NaN."""
    each = array("Q", [0] * len(kept.segments))
    for i, x in scores.items():
        each[i] = pointer(x)
    at = each.buffer_info()[0], pointer(kept.words, torch.int64), placement(kept.segments)
    return extension().grow(*at, pointer(k, torch.int64), pointer(words, torch.int64), num_threads())
