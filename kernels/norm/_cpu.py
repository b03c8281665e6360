"""Native group and batch norm."""

from functools import lru_cache
from typing import Any

from torch import Tensor

from sparsefl.kernels.native import extension, num_threads, pointer
from sparsefl.kernels.norm import Gradients, Normed
from sparsefl.kernels.registry import register


@register("group_norm", "cpu")
def group_norm(
    x: Tensor, gamma: Tensor | None, beta: Tensor | None, eps: float, relu: bool, out: Normed
) -> None:
    into = map(pointer, out)
    extension().group_norm(
        _shape(x, len(out.mean)), pointer(x), _maybe(gamma), _maybe(beta), eps, relu, *into, num_threads()
    )


@register("group_norm_backward", "cpu")
def group_norm_backward(
    dy: Tensor,
    x: Tensor,
    mean: Tensor,
    rstd: Tensor,
    gamma: Tensor | None,
    beta: Tensor | None,
    relu: bool,
    out: Gradients,
) -> None:
    given = *map(pointer, (dy, x, mean, rstd)), _maybe(gamma), _maybe(beta)
    extension().group_norm_backward(_shape(x, len(mean)), *given, relu, *map(_maybe, out), num_threads())


@register("batch_norm", "cpu")
def batch_norm(
    x: Tensor,
    gamma: Tensor | None,
    beta: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    training: bool,
    eps: float,
    relu: bool,
    out: Normed,
) -> None:
    if not training:
        assert running_mean is not None and running_var is not None
        out.mean.copy_(running_mean)
        out.rstd.copy_((running_var + eps).rsqrt())
    running = extension().RunningStatistics(
        mean=_maybe(running_mean), var=_maybe(running_var), momentum=momentum
    )
    given = pointer(x), _maybe(gamma), _maybe(beta), eps, relu, training
    extension().batch_norm(_shape(x, 1), *given, running, *map(pointer, out), num_threads())


@register("batch_norm_backward", "cpu")
def batch_norm_backward(
    dy: Tensor,
    x: Tensor,
    mean: Tensor,
    rstd: Tensor,
    gamma: Tensor | None,
    beta: Tensor | None,
    training: bool,
    relu: bool,
    out: Gradients,
) -> None:
    given = *map(pointer, (dy, x, mean, rstd)), _maybe(gamma), _maybe(beta), relu, training
    extension().batch_norm_backward(_shape(x, 1), *given, *map(_maybe, out), num_threads())


def _shape(x: Tensor, groups: int) -> Any:
    channels, height, width, batch = x.shape
    return _made(channels, groups, height * width, batch)


@lru_cache(maxsize=256)
def _made(channels: int, groups: int, size: int, batch: int) -> Any:
    """NormShape of csrc/layers/shapes.h"""
    return extension().NormShape(channels=channels, groups=groups, size=size, batch=batch)


def _maybe(x: Tensor | None) -> int:
    return 0 if x is None else pointer(x)
