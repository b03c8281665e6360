"""Plain torch: the specification of masked SGD."""

from torch import Tensor

from sparsefl.kernels.layout import Bitmap
from sparsefl.kernels.reference import dense_mask
from sparsefl.kernels.registry import register


@register("masked_sgd_", "reference")
def masked_sgd_(
    w: Tensor,
    g: Tensor,
    u: Tensor | None,
    lr: float,
    momentum: float,
    weight_decay: float,
    nesterov: bool,
    scale: float,
    through: Bitmap | None,
) -> None:
    if through is not None:
        g = g[dense_mask(through.words, through.segments)]
    d = scale * g + weight_decay * w
    if u is not None:
        u.mul_(momentum).add_(d)
        d = d + momentum * u if nesterov else u
    w.sub_(lr * d)
