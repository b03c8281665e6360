"""PQ index of every layer in one pass:   I = 1 - mean(|w|^p)^(1/p) / mean(|w|^q)^(1/q),   0 < p < q

0 for a constant layer, towards 1 for one that a few weights carry. d counts the stored entries, zeros too. An
empty or all-zero layer has I = 0: nothing there tells small from large.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from kernels import checks, registry

_call = registry.bind(__name__)


class PQ(NamedTuple):
    """Per layer, float64 on the CPU."""

    pqi: Tensor
    p_norm: Tensor  # (sum |w|^p)^(1/p)
    q_norm: Tensor


def pqi(values: Tensor, offsets: Tensor, *, p: float = 0.5, q: float = 1.0) -> PQ:
    """Layer i is values[offsets[i] : offsets[i + 1]]. The result does not depend on the number of threads."""
    checks.flat(values=values)
    check_offsets(offsets, values)
    if not (0 < p < q and math.isfinite(q)):
        raise ValueError(f"expected 0 < p < q, both finite, got p={p}, q={q}")
    norms = torch.zeros(len(offsets) - 1, 2, dtype=torch.float64)
    if values.numel():
        _call("pq_norms", values.device, values, offsets, float(p), float(q), norms)
    p_norm, q_norm = norms.unbind(1)
    d = offsets.diff().double().clamp(min=1)
    ratio = d ** (1 / q - 1 / p) * p_norm / q_norm  # at most 1 but for rounding; 0/0 in a layer of zeros
    return PQ(torch.where(q_norm == 0, 0.0, 1 - ratio.clamp(max=1)), p_norm, q_norm)


def check_offsets(offsets: Tensor, values: Tensor) -> None:
    """int64 on the CPU, ascending from 0 to the number of values."""
    checks.dtype(torch.int64, offsets=offsets)
    checks.contiguous(offsets=offsets)
    if offsets.dim() != 1 or offsets.device.type != "cpu" or len(offsets) < 1:
        raise ValueError(
            f"expected offsets as a 1-D CPU tensor, got {tuple(offsets.shape)} on {offsets.device}"
        )
    if offsets[0] != 0 or offsets[-1] != values.numel() or (offsets.diff() < 0).any():
        raise ValueError(f"expected offsets that ascend from 0 to {values.numel()}, got {offsets.tolist()}")
