"""Native addition with relu."""

from torch import Tensor

from sparsefl.kernels.native import extension, num_threads, pointer
from sparsefl.kernels.registry import register


@register("add_relu", "cpu")
def add_relu(a: Tensor, b: Tensor, y: Tensor) -> None:
    extension().add_relu(pointer(a), pointer(b), pointer(y), y.numel(), num_threads())
