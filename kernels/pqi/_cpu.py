"""Native p- and q-norms."""

import torch
from torch import Tensor

from sparsefl.kernels.native import extension, num_threads, pointer
from sparsefl.kernels.registry import register


@register("pq_norms", "cpu")
def pq_norms(values: Tensor, offsets: Tensor, p: float, q: float, norms: Tensor) -> None:
    at = pointer(values), pointer(offsets, torch.int64), len(offsets) - 1
    extension().pq_norms(*at, p, q, pointer(norms, torch.float64), num_threads())
