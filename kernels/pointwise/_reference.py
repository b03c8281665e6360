"""Plain torch: the specification of what is done to each entry by itself."""

from torch import Tensor

from sparsefl.kernels.registry import register


@register("add", "reference")
def add(a: Tensor, b: Tensor, y: Tensor) -> None:
    y.copy_(a + b)


@register("add_relu", "reference")
def add_relu(a: Tensor, b: Tensor, y: Tensor) -> None:
    y.copy_((a + b).relu())


@register("relu", "reference")
def relu(x: Tensor, y: Tensor) -> None:
    y.copy_(x.relu())


@register("relu_backward", "reference")
def relu_backward(y: Tensor, dy: Tensor, dx: Tensor) -> None:
    dx.copy_(dy.masked_fill(y <= 0, 0))
