"""A matrix turned over:   y = x^T, in memory too

torch copies such a matrix entry by entry; a token layer turns two or three matrices in every step.
"""

from torch import Tensor

from sparsefl.kernels import checks, memory, registry

_call = registry.bind(__name__)


def transpose(x: Tensor) -> Tensor:
    """y [columns, rows], new and contiguous, of a contiguous x [rows, columns]."""
    if x.dim() != 2:
        raise ValueError(f"expected a matrix, got {tuple(x.shape)}")
    checks.dtype(*checks.FLOATS, x=x)
    checks.contiguous(x=x)
    y = memory.empty((x.shape[1], x.shape[0]), x)
    if x.numel():
        _call("transpose", x.device, x, y)
    return y
