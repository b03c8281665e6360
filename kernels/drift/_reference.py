"""Plain torch: the specification of the drift (its squares)."""

from collections.abc import Sequence

import torch
from torch import Tensor

from sparsefl.kernels.layout import Packed
from sparsefl.kernels.reference import dense_mask
from sparsefl.kernels.registry import register


@register("drift", "reference")
def drift(a: Packed, b: Packed, squares: Tensor) -> None:
    for layer, d in enumerate((_dense(a) - _dense(b)).split(a.bitmap.segments.sizes)):
        squares[layer] = d.square().sum()


def _dense(model: Packed) -> Tensor:
    dense = torch.zeros(model.bitmap.segments.numel, dtype=torch.float64, device=model.values.device)
    dense[dense_mask(model.bitmap.words, model.bitmap.segments)] = model.values.double()
    return dense


@register("drift_of_runs", "reference")
def drift_of_runs(a: Tensor, b: Tensor, runs: Sequence[int], squares: Tensor) -> None:
    d = a.double() - b.double()
    for i, (lo, hi) in enumerate(zip(runs[::2], runs[1::2], strict=True)):
        squares[i] = d[lo:hi].square().sum()
