"""Drift of two models, tensor by tensor:   ||a_l - b_l||_2,   an entry that is not stored counting as 0

drift           of packed values
drift_of_runs   of runs of two flat tensors, on the CPU
"""

from collections.abc import Sequence

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


def drift_of_runs(a: Tensor, b: Tensor, runs: Sequence[int]) -> Tensor:
    """float64 on the CPU: the norm of a - b over each run. `runs`: begin, end, begin, end, ..."""
    checks.flat(a=a, b=b)
    checks.same_shape(a=a, b=b)
    checks.same_dtype(a=a, b=b)
    if len(runs) % 2 or any(
        not 0 <= lo <= hi <= len(a) for lo, hi in zip(runs[::2], runs[1::2], strict=True)
    ):
        raise ValueError(f"expected runs within {len(a)} entries, got {list(runs)}")
    squares = torch.zeros(len(runs) // 2, dtype=torch.float64)
    if len(squares):
        _call("drift_of_runs", torch.device("cpu"), a.cpu(), b.cpu(), runs, squares)
    return squares.sqrt_()
