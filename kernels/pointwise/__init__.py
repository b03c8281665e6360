"""What is done to each entry by itself, in one pass over memory:

    add            y = a + b
    add_relu       y = max(a + b, 0)
    relu           y = max(x, 0)
    relu_backward  dx = dy where y > 0, else 0

Tensors of one shape, contiguous. `out` may be any of the arguments. A NaN passes relu, and dy passes at one.
"""

from torch import Tensor

from sparsefl.kernels import checks, memory, registry

_call = registry.bind(__name__)


def add(a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    """`out`, or a new tensor, with a + b."""
    return _run("add", out, a=a, b=b)


def add_relu(a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    """`out`, or a new tensor, with max(a + b, 0)."""
    return _run("add_relu", out, a=a, b=b)


def relu(x: Tensor, out: Tensor | None = None) -> Tensor:
    """`out`, or a new tensor, with max(x, 0)."""
    return _run("relu", out, x=x)


def relu_backward(y: Tensor, dy: Tensor, out: Tensor | None = None) -> Tensor:
    """`out`, or a new tensor, with the gradient before a relu; y: what the relu gave, or got."""
    return _run("relu_backward", out, y=y, dy=dy)


def _run(op: str, out: Tensor | None, **given: Tensor) -> Tensor:
    first = next(iter(given.values()))
    result = memory.empty(tuple(first.shape), first) if out is None else out
    checks.same_shape(**given, out=result)
    checks.dtype(*checks.FLOATS, **given)
    checks.same_dtype(**given, out=result)
    checks.same_device(**given, out=result)
    checks.contiguous(**given, out=result)
    if result.numel():
        _call(op, first.device, *given.values(), result)
    return result
