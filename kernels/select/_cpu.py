"""Native selection."""

import torch
from torch import Tensor

from sparsefl.kernels.layout import Bitmap
from sparsefl.kernels.native import extension, num_threads, pointer, structure
from sparsefl.kernels.registry import register


@register("select", "cpu")
def select(x: Tensor, candidates: Bitmap, k: Tensor, largest: bool, dense: bool, words: Tensor) -> bool:
    """Writes the chosen bits into words; False when a candidate is NaN."""
    at = pointer(x), *structure(candidates), pointer(k, torch.int64)
    return extension().select(*at, largest, dense, pointer(words, torch.int64), num_threads())
