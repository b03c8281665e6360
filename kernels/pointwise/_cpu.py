"""Native operations on each entry by itself."""

from torch import Tensor

from sparsefl.kernels.native import extension, num_threads, pointer
from sparsefl.kernels.registry import register


@register("add", "cpu")
def add(a: Tensor, b: Tensor, y: Tensor) -> None:
    extension().add(pointer(a), pointer(b), pointer(y), y.numel(), num_threads())


@register("add_relu", "cpu")
def add_relu(a: Tensor, b: Tensor, y: Tensor) -> None:
    extension().add_relu(pointer(a), pointer(b), pointer(y), y.numel(), num_threads())


@register("relu", "cpu")
def relu(x: Tensor, y: Tensor) -> None:
    extension().relu(pointer(x), pointer(y), y.numel(), num_threads())


@register("relu_backward", "cpu")
def relu_backward(y: Tensor, dy: Tensor, dx: Tensor) -> None:
    extension().relu_backward(pointer(y), pointer(dy), pointer(dx), dx.numel(), num_threads())
