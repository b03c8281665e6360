"""Drift of two models, tensor by tensor:   ||a_l - b_l||_2,   an entry that is not stored counting as 0"""

import torch
from torch import Tensor

from sparsefl.kernels import checks, registry
from sparsefl.kernels.layout import Packed

_call = registry.bind(__name__)


def drift(a: Packed, b: Packed) -> Tensor:
    """float64 [L] on the CPU: the norm of every tensor's difference. Patterns may differ, shapes may not."""
    if a.bitmap.segments.sizes != b.bitmap.segments.sizes:
        raise ValueError(
            f"expected models of one shape, got {a.bitmap.segments.sizes} and {b.bitmap.segments.sizes}"
        )
    checks.flat(a=a.values, b=b.values)
    checks.same_dtype(a=a.values, b=b.values)
    checks.same_device(a=a.values, b=b.values, support_a=a.bitmap.words, support_b=b.bitmap.words)
    checks.length(a.bitmap.nnz, "values of a", a=a.values)
    checks.length(b.bitmap.nnz, "values of b", b=b.values)
    squares = torch.zeros(len(a.bitmap.segments), dtype=torch.float64)
    if a.bitmap.nnz or b.bitmap.nnz:
        _call("drift", a.values.device, a, b, squares)
    return squares.sqrt_()
