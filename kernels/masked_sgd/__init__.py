"""Masked SGD on packed values:

    d <- s g + lambda w,   u <- mu u + d,   w <- w - eta (d + mu u  if Nesterov, else u)

w, u: the packed values and momenta of a whole model; u is None when mu = 0.  In place on w and u.
g: packed like w; or dense, and then read through the bitmap: entries outside it are never touched.
s scales the gradient before weight decay: max_norm / |g| where the norm is clipped, else 1.
"""

from torch import Tensor

from sparsefl.kernels import checks, registry
from sparsefl.kernels.layout import Bitmap

_call = registry.bind(__name__)


def masked_sgd_(
    w: Tensor,
    g: Tensor,
    u: Tensor | None = None,
    *,
    lr: float,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    nesterov: bool = False,
    scale: float = 1.0,
    through: Bitmap | None = None,
) -> None:
    """One step. `through`: the bitmap of w, when g is dense (segments concatenated)."""
    tensors = {"w": w, "g": g} | ({} if u is None else {"u": u})
    checks.flat(**tensors)
    checks.same_dtype(**tensors)
    if (u is None) != (momentum == 0):
        raise ValueError(
            f"expected u exactly when momentum is not 0, got momentum {momentum} and u {type(u).__name__}"
        )
    if nesterov and momentum == 0:
        raise ValueError("expected a momentum with nesterov, got 0")
    if u is not None:
        checks.same_shape(w=w, u=u)
    if through is None:
        checks.same_shape(w=w, g=g)
    else:
        checks.length(through.nnz, "packed values in the bitmap", w=w)
        checks.length(through.segments.numel, "dense entries under the bitmap", g=g)
        checks.same_device(w=w, bitmap=through.words)
    if w.numel():
        numbers = float(lr), float(momentum), float(weight_decay), nesterov, float(scale)
        _call("masked_sgd_", w.device, w, g, u, *numbers, through)
