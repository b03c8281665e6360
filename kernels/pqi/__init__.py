"""PQ index of every layer in one pass:   I = 1 - mean(|w|^p)^(1/p) / mean(|w|^q)^(1/q),   0 < p < q

0 for a constant layer, towards 1 for one that a few weights carry. d counts the stored entries, zeros too. An
empty or all-zero layer has I = 0: nothing there tells small from large.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from sparsefl.kernels import checks, registry

_call = registry.bind(__name__)


class PQ(NamedTuple):
    """Per layer, float64 on the CPU."""

    pqi: Tensor
    p_norm: Tensor  # (sum |w|^p)^(1/p)
    q_norm: Tensor


def pqi(values: Tensor, offsets: Tensor, *, p: float = 0.5, q: float = 1.0) -> PQ:
    """Layer i is values[offsets[i] : offsets[i + 1]]. The result does not depend on the number of threads."""
    checks.flat(values=values)
    bounds = check_offsets(offsets, values)
    if not (0 < p < q and math.isfinite(q)):
        raise ValueError(f"expected 0 < p < q, both finite, got p={p}, q={q}")
    norms = torch.zeros(len(offsets) - 1, 2, dtype=torch.float64)
    if values.numel():
        _call("pq_norms", values.device, values, offsets, float(p), float(q), norms)
    indices = [
        _index(hi - lo, p_norm, q_norm, p, q)
        for lo, hi, (p_norm, q_norm) in zip(bounds, bounds[1:], norms.tolist(), strict=False)
    ]  # a handful of layers: plain Python is faster here than a dozen small tensors
    return PQ(torch.tensor(indices, dtype=torch.float64), norms[:, 0], norms[:, 1])


def _index(d: int, p_norm: float, q_norm: float, p: float, q: float) -> float:
    if q_norm == 0:
        return 0.0
    ratio = d ** (1 / q - 1 / p) * p_norm / q_norm
    return 1 - ratio if not ratio > 1 else 0.0  # above 1 by rounding only; NaN stays NaN


def check_offsets(offsets: Tensor, values: Tensor) -> list[int]:
    """int64 on the CPU, ascending from 0 to the number of values."""
    checks.dtype(torch.int64, offsets=offsets)
    checks.contiguous(offsets=offsets)
    if offsets.dim() != 1 or offsets.device.type != "cpu" or len(offsets) < 1:
        raise ValueError(
            f"expected offsets as a 1-D CPU tensor, got {tuple(offsets.shape)} on {offsets.device}"
        )
    bounds = offsets.tolist()
    if bounds[0] != 0 or bounds[-1] != values.numel() or sorted(bounds) != bounds:
        raise ValueError(f"expected offsets that ascend from 0 to {values.numel()}, got {bounds}")
    return bounds
