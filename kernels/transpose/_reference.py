"""Plain torch: the specification of a transpose."""

from torch import Tensor

from sparsefl.kernels.registry import register


@register("transpose", "reference")
def transpose(x: Tensor, y: Tensor) -> None:
    y.copy_(x.t())
