"""Native drift."""

from array import array
from collections.abc import Sequence

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


@register("drift_of_runs", "cpu")
def drift_of_runs(a: Tensor, b: Tensor, runs: Sequence[int], squares: Tensor) -> None:
    at = array("q", runs)
    into = pointer(squares, torch.float64)
    extension().drift_of_runs(pointer(a), pointer(b), at.buffer_info()[0], len(squares), into)
