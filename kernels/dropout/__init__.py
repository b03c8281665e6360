"""Dropout without a state:   y = x m,  m = 1 / (1 - p) if bits(seed, step, element, sample) >= p 2^32, else 0

x: batch-last [..., batch], contiguous. `element`: an entry's place within its sample; `sample`: the sample's
place in the batch; `step`: one number per forward pass. So a sample keeps the same entries in a batch of any
size, on any backend and any number of threads. The gradient is the same call on dy. `_reference.py` says what
`bits` is. 0 times a NaN is a NaN: dropping hides none.
"""

from torch import Tensor

from sparsefl.kernels import checks, memory, registry

_call = registry.bind(__name__)
_MOST = 2**64 - 1


def dropout(x: Tensor, p: float, *, seed: int, step: int = 0, out: Tensor | None = None) -> Tensor:
    """`out`, which may be x, or a new tensor with y."""
    if not 0 <= p < 1:
        raise ValueError(f"expected a probability from 0 and below 1, got {p}")
    for name, number in {"seed": seed, "step": step}.items():
        if not 0 <= number <= _MOST:
            raise ValueError(f"expected a {name} from 0 to 2^64 - 1, got {number}")
    if x.dim() == 0:
        raise ValueError("expected x as [..., batch], got a single number")
    y = memory.empty(tuple(x.shape), x) if out is None else out
    checks.same_shape(x=x, out=y)
    checks.dtype(*checks.FLOATS, x=x)
    checks.same_dtype(x=x, out=y)
    checks.same_device(x=x, out=y)
    checks.contiguous(x=x, out=y)
    if y.numel():
        flat = (-1, x.shape[-1])
        _call("dropout", x.device, x.view(flat), p, seed, step, y.view(flat))
    return y
