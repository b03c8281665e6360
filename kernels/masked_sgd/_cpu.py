"""Native masked SGD."""

from torch import Tensor

from sparsefl.kernels.layout import Bitmap
from sparsefl.kernels.native import extension, num_threads, pointer, structure
from sparsefl.kernels.registry import register


@register("masked_sgd_", "cpu")
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
    at = pointer(w), pointer(g), 0 if u is None else pointer(u)
    how = extension().Sgd(lr=lr, momentum=momentum, weight_decay=weight_decay, nesterov=nesterov, scale=scale)
    if through is None:
        extension().masked_sgd(*at, w.numel(), how, num_threads())
    else:
        extension().masked_sgd_through(*at, *structure(through), how, num_threads())
