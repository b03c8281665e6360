"""The gradient of a bias:   db_c = sum over positions and samples of dy_c

dy: batch-last [channels, ..., batch], contiguous. Long sums go on in float64.
"""

from math import prod

from torch import Tensor

from sparsefl.kernels import checks, memory, registry

_call = registry.bind(__name__)


def bias_gradient(dy: Tensor) -> Tensor:
    """db [channels], new."""
    if dy.dim() < 2:
        raise ValueError(f"expected dy as [channels, ..., batch], got {tuple(dy.shape)}")
    checks.dtype(*checks.FLOATS, dy=dy)
    checks.contiguous(dy=dy)
    db = memory.empty((len(dy),), dy)
    if len(dy):
        _call("bias_gradient", dy.device, dy.view(len(dy), prod(dy.shape[1:])), db)
    return db
