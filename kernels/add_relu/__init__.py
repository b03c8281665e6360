"""Residual addition followed by relu, in one pass over memory:   y = max(a + b, 0)

a, b: one shape, contiguous. relu alone and the gradient, dy where y > 0 for both a and b, are torch's own
(`relu_`, `torch.ops.aten.threshold_backward(dy, y, 0)`): one pass each already, nothing to gain.
"""

from torch import Tensor

from sparsefl.kernels import checks, memory, registry

_call = registry.bind(__name__)


def add_relu(a: Tensor, b: Tensor) -> Tensor:
    """y, new."""
    _check(a, b)
    y = memory.empty(a.shape, a)
    if y.numel():
        _call("add_relu", a.device, a, b, y)
    return y


def add_relu_(a: Tensor, b: Tensor) -> None:
    """In place: a <- y."""
    _check(a, b)
    if a.numel():
        _call("add_relu", a.device, a, b, a)


def _check(a: Tensor, b: Tensor) -> None:
    checks.same_shape(a=a, b=b)
    checks.dtype(*checks.FLOATS, a=a)
    checks.same_dtype(a=a, b=b)
    checks.same_device(a=a, b=b)
    checks.contiguous(a=a, b=b)
