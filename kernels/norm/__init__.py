"""Group and batch normalisation of batch-last tensors [channels, height, width, batch], and their gradients.

    xhat = (x - mean) rstd,   rstd = 1 / sqrt(var + eps),   y = gamma xhat + beta   (then relu, if asked for)
    dgamma = sum of dy xhat,   dbeta = sum of dy   over positions and batch
    dx = rstd (gamma dy - the mean of gamma dy - xhat times the mean of gamma dy xhat)

mean and var are taken over the channels of a group and the positions for each sample (group norm), or over
positions and batch for each channel (batch norm); var is the biased one. With relu, only the dy where y > 0
count. Backward finds the sign of y again from x: that costs two operations in registers, and y need not be
read (or kept) by this layer. x, y, dx and dy may be bfloat16: everything else is float32 then.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from sparsefl.kernels import checks, memory, registry

_call = registry.bind(__name__)


class Normed(NamedTuple):
    """y like x; mean and rstd for backward: [groups, batch] of a group norm, [channels] of a batch norm."""

    y: Tensor
    mean: Tensor
    rstd: Tensor


class Gradients(NamedTuple):
    """dx like x; dgamma and dbeta [channels], None where there was no gamma or no beta."""

    dx: Tensor
    dgamma: Tensor | None
    dbeta: Tensor | None


def group_norm(
    x: Tensor,
    groups: int,
    gamma: Tensor | None = None,
    beta: Tensor | None = None,
    *,
    eps: float = 1e-5,
    relu: bool = False,
) -> Normed:
    """The channels in `groups` groups of neighbours. gamma, beta: [channels]."""
    _check(x, gamma, beta)
    if groups < 1 or x.shape[0] % groups:
        raise ValueError(f"expected groups that divide {x.shape[0]} channels, got {groups}")
    mean = x.new_empty(groups, x.shape[3], dtype=_statistics(x))
    out = Normed(memory.empty(x.shape, x), mean, torch.empty_like(mean))
    if x.numel():
        _call("group_norm", x.device, x, gamma, beta, float(eps), relu, out)
    return out


def group_norm_backward(
    dy: Tensor,
    x: Tensor,
    mean: Tensor,
    rstd: Tensor,
    gamma: Tensor | None = None,
    beta: Tensor | None = None,
    *,
    relu: bool = False,
) -> Gradients:
    """mean, rstd: as `group_norm` gave them; gamma, beta, relu: as it got them."""
    _check(x, gamma, beta)
    _expect(x, x.shape, x.dtype, dy=dy)
    if mean.dim() != 2 or not len(mean) or x.shape[0] % len(mean):
        raise ValueError(f"expected mean as [groups, {x.shape[3]}], got {tuple(mean.shape)}")
    _expect(x, torch.Size((len(mean), x.shape[3])), mean=mean, rstd=rstd)
    out = _gradients(x, gamma, beta)
    if x.numel():
        _call("group_norm_backward", x.device, dy, x, mean, rstd, gamma, beta, relu, out)
    return out


def batch_norm(
    x: Tensor,
    gamma: Tensor | None = None,
    beta: Tensor | None = None,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    *,
    training: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
    relu: bool = False,
) -> Normed:
    """Training: by this batch, whose mean and unbiased variance go into the running ones, in place:
    running <- (1 - momentum) running + momentum new. Else: by the running ones."""
    _check(x, gamma, beta)
    if (running_mean is None) != (running_var is None):
        raise ValueError("expected running_mean and running_var both or neither, got one")
    _expect(x, x.shape[:1], running_mean=running_mean, running_var=running_var)
    if running_mean is None and not training:
        raise ValueError("expected running_mean and running_var when not training, got None")
    if training and x.numel() <= x.shape[0]:
        raise ValueError(f"expected more than one value per channel when training, got {tuple(x.shape)}")
    mean = x.new_empty(x.shape[0], dtype=_statistics(x))
    out = Normed(memory.empty(x.shape, x), mean, torch.empty_like(mean))
    running = running_mean, running_var, float(momentum)
    if x.numel():
        _call("batch_norm", x.device, x, gamma, beta, *running, training, float(eps), relu, out)
    return out


def batch_norm_backward(
    dy: Tensor,
    x: Tensor,
    mean: Tensor,
    rstd: Tensor,
    gamma: Tensor | None = None,
    beta: Tensor | None = None,
    *,
    training: bool = True,
    relu: bool = False,
) -> Gradients:
    """mean, rstd: as `batch_norm` gave them; the others: as it got them. Not training: dx = rstd gamma dy."""
    _check(x, gamma, beta)
    _expect(x, x.shape, x.dtype, dy=dy)
    _expect(x, x.shape[:1], mean=mean, rstd=rstd)
    out = _gradients(x, gamma, beta)
    if x.numel():
        _call("batch_norm_backward", x.device, dy, x, mean, rstd, gamma, beta, training, relu, out)
    return out


def _check(x: Tensor, gamma: Tensor | None, beta: Tensor | None) -> None:
    if x.dim() != 4:
        raise ValueError(f"expected x as [channels, height, width, batch], got {tuple(x.shape)}")
    checks.dtype(*checks.IMAGES, x=x)
    checks.contiguous(x=x)
    _expect(x, x.shape[:1], gamma=gamma, beta=beta)


def _statistics(x: Tensor) -> torch.dtype:
    """The dtype of statistics, gamma and beta."""
    return torch.float32 if x.dtype == torch.bfloat16 else x.dtype


def _expect(
    x: Tensor, shape: torch.Size, wanted: torch.dtype | None = None, **tensors: Tensor | None
) -> None:
    """Each of this shape, contiguous, on x's device, of the dtype of its statistics: in one look, these layers
    are called often."""
    dtype = wanted or _statistics(x)
    for name, t in tensors.items():
        if t is None or (
            t.shape == shape and t.dtype == dtype and t.device == x.device and t.is_contiguous()
        ):
            continue
        raise ValueError(
            f"expected {name} as contiguous {tuple(shape)} of {dtype} on {x.device}, "
            f"got {tuple(t.shape)} of {t.dtype} on {t.device} with strides {t.stride()}"
        )


def _gradients(x: Tensor, gamma: Tensor | None, beta: Tensor | None) -> Gradients:
    """Room for them; of an empty x, zeros."""
    make = torch.empty_like if x.numel() else torch.zeros_like
    return Gradients(memory.empty(x.shape, x), *(None if t is None else make(t) for t in (gamma, beta)))
