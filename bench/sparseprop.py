"""SparseProp (Nikdan et al., ICML 2023, arXiv 2302.04852) as a rival in `bench layers`, if it is installed.

It is no part of this repository; CONTRIBUTING.md says how to build it. A step is its module's forward, then
autograd's gradients of the input and of the stored weights, as its users run it, in the memory order that
costs it least: batch-last for the kernel that goes over the batch, which then copies nothing. Its linear
layer transposes whatever it is given.
"""

import ctypes
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from sparsefl.bench.timing import take_turns

Step = Callable[[], tuple[Tensor, ...]]  # y, input gradient, gradient of the stored weights


def conv(weight: Tensor, images: Tensor, gradient: Tensor, *, stride: int, padding: int) -> dict[str, Step]:
    """The faster of its two kernels, or both when they are close; nothing when it is not installed."""
    if not (library := _library()):
        return {}

    def module(over_width: bool) -> Any:
        return library.SparseConv2d(weight, padding=padding, stride=stride, vectorizing_over_on=over_width)

    steps = {"SparseProp over batch": _step(module(False), _batch_last(images), _batch_last(gradient))}
    if stride == 1:  # with stride 2 its kernel over the width touches memory beyond the input gradient
        steps["SparseProp over width"] = _step(module(True), images.contiguous(), gradient.contiguous())
    s, p = [stride] * 2, [padding] * 2
    dx, dw, _ = torch.ops.aten.convolution_backward(
        gradient, images, weight, None, s, p, [1, 1], False, [0, 0], 1, [True, True, False]
    )
    return _checked(_fast(steps), F.conv2d(images, weight, stride=s, padding=p), dx, dw[weight != 0])


def linear(weight: Tensor, x: Tensor, dy: Tensor) -> dict[str, Step]:
    """weight [out, in], x [N, in], dy [N, out]; nothing when it is not installed."""
    if not (library := _library()):
        return {}
    # contiguous: its kernels ignore strides
    weight, x, dy = weight.contiguous(), x.contiguous(), dy.contiguous()
    steps = {"SparseProp": _step(library.SparseLinear(weight), x, dy)}
    return _checked(steps, x @ weight.t(), dy @ weight, (dy.t() @ x)[weight != 0])


def _library() -> ModuleType | None:
    """Its modules, set to torch's number of threads; None when not installed, an error when not compiled."""
    try:
        import sparseprop.modules
    except ModuleNotFoundError as missing:
        if missing.name not in ("sparseprop", "sparseprop.modules"):
            raise
        return None
    # its own set_num_threads changes the environment, which OpenMP has read long ago
    ctypes.CDLL(sparseprop.backend.__file__).omp_set_num_threads(torch.get_num_threads())
    return sparseprop.modules


def _step(module: Any, x: Tensor, dy: Tensor) -> Step:
    x = x.detach().requires_grad_()

    def step() -> tuple[Tensor, ...]:
        y = module(x)
        return (y, *torch.autograd.grad(y, (x, module.weight), dy))

    return step


def _batch_last(images: Tensor) -> Tensor:
    return images.permute(1, 2, 3, 0).contiguous().permute(3, 0, 1, 2)


def _fast(steps: dict[str, Step]) -> dict[str, Step]:
    """Return the steps within 1.5 x of the fastest: slower ones would take most of a benchmark."""
    trial = {name: timing.best for name, timing in take_turns(steps, repeats=2, burst=0).items()}
    return {name: step for name, step in steps.items() if trial[name] <= 1.5 * min(trial.values())}


def _checked(steps: dict[str, Step], *expected: Tensor) -> dict[str, Step]:
    for name, step in steps.items():
        for what, theirs, dense in zip(("y", "dx", "dv"), step(), expected, strict=True):
            error = ((theirs - dense).norm() / dense.norm()).item()
            if not error < 1e-4:
                raise AssertionError(f"{name}: {what} is off by {error:.2g}: a wrong result gets no time")
    return steps
