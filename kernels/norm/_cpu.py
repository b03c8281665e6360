"""Native group and batch norm."""

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from sparsefl.kernels.native import extension, num_threads, pointer
from sparsefl.kernels.norm import Gradients, Normed
from sparsefl.kernels.registry import register


@register("group_norm", "cpu")
def group_norm(
    x: Tensor, gamma: Tensor | None, beta: Tensor | None, eps: float, relu: bool, out: Normed
) -> None:
    into = _at(out.y), pointer(out.mean), pointer(out.rstd)
    _op("group_norm", x)(
        _shape(x, len(out.mean)), _at(x), _maybe(gamma), _maybe(beta), eps, relu, *into, num_threads()
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
    given = _at(dy), _at(x), pointer(mean), pointer(rstd), _maybe(gamma), _maybe(beta)
    into = _at(out.dx), _maybe(out.dgamma), _maybe(out.dbeta)
    _op("group_norm_backward", x)(_shape(x, len(mean)), *given, relu, *into, num_threads())


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
    given = _at(x), _maybe(gamma), _maybe(beta), eps, relu, training
    into = _at(out.y), pointer(out.mean), pointer(out.rstd)
    _op("batch_norm", x)(_shape(x, 1), *given, running, *into, num_threads())


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
    given = _at(dy), _at(x), pointer(mean), pointer(rstd), _maybe(gamma), _maybe(beta), relu, training
    into = _at(out.dx), _maybe(out.dgamma), _maybe(out.dbeta)
    _op("batch_norm_backward", x)(_shape(x, 1), *given, *into, num_threads())


def _shape(x: Tensor, groups: int) -> Any:
    channels, height, width, batch = x.shape
    return _made(channels, groups, height * width, batch)


@lru_cache(maxsize=256)
def _made(channels: int, groups: int, size: int, batch: int) -> Any:
    """NormShape of csrc/layers/shapes.h"""
    return extension().NormShape(channels=channels, groups=groups, size=size, batch=batch)


def _op(name: str, x: Tensor) -> Any:
    """The native operation for the dtype of the images."""
    return getattr(extension(), name + "_bf16" if x.dtype == torch.bfloat16 else name)


def _at(x: Tensor) -> int:
    return pointer(x, torch.bfloat16 if x.dtype == torch.bfloat16 else torch.float32)


def _maybe(x: Tensor | None) -> int:
    return 0 if x is None else pointer(x)
