"""One dense layer in PyTorch, forward and both gradients, as users would pick it.

    torch                    contiguous, eager, float32
    torch channels_last      the other layout (convolutions)
    torch compiled           torch.compile of the layer, with autograd
    ... bf16                 each under torch.autocast("cpu", torch.bfloat16): weights stay float32

The first two call the operations themselves, without autograd, so that only arithmetic is compared; those of
the others include it, as nobody can take them without.
"""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

BF16 = " bf16"
Run = Callable[[], object]


def rivals(
    images: Tensor,
    weight: Tensor,
    gradient: Tensor,
    how: dict[str, Any],
    *,
    linear: bool,
    compiled: bool = True,
) -> dict[str, Run]:
    """How: stride and padding. linear: a 1x1 image, which torch takes as a matrix."""
    given = (images, weight, gradient)
    if linear:
        a, w, g = (t[:, :, 0, 0].contiguous() for t in given)
        found: dict[str, Run] = {"torch": lambda: (a @ w.t(), g @ w, g.t() @ a)}
        layouts = {"torch": (a, w, g)}
    else:
        layouts = {
            "torch": given,
            "torch channels_last": tuple(t.to(memory_format=torch.channels_last) for t in given),
        }
        found = {name: _conv(*tensors, how) for name, tensors in layouts.items()}

    def layer(x: Tensor, w: Tensor) -> Tensor:
        return F.linear(x, w) if linear else F.conv2d(x, w, **how)

    for name, tensors in layouts.items():
        found[name + BF16] = _autograd(layer, *tensors, bf16=True)
    if compiled:
        fast = torch.compile(layer, dynamic=False)
        found["torch compiled"] = _autograd(fast, *layouts["torch"], bf16=False)
    return found


def _conv(x: Tensor, w: Tensor, dy: Tensor, how: dict[str, Any]) -> Run:
    stride, padding = [how["stride"]] * 2, list(how["padding"])
    rest = [1, 1], False, [0, 0], 1, [True, True, False]

    def run() -> None:
        F.conv2d(x, w, **how)
        torch.ops.aten.convolution_backward(dy, x, w, None, stride, padding, *rest)

    return run


def _autograd(layer: Callable[..., Tensor], x: Tensor, w: Tensor, dy: Tensor, *, bf16: bool) -> Run:
    x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
    dy = dy.to(torch.bfloat16) if bf16 else dy

    def run() -> None:
        with torch.autocast("cpu", torch.bfloat16) if bf16 else nullcontext():
            y = layer(x, w)
        torch.autograd.grad(y, [x, w], dy)

    return run
