"""Native transpose."""

from torch import Tensor

from sparsefl.kernels.native import extension, num_threads, pointer
from sparsefl.kernels.registry import register


@register("transpose", "cpu")
def transpose(x: Tensor, y: Tensor) -> None:
    extension().transpose(pointer(x), *x.shape, pointer(y), num_threads())
