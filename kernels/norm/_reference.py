"""Plain torch: the specification of the norms and their gradients."""

import torch
from torch import Tensor

from sparsefl.kernels.norm import Gradients, Normed
from sparsefl.kernels.registry import register


@register("group_norm", "reference")
def group_norm(x: Tensor, gamma: Tensor, beta: Tensor, eps: float, relu: bool, out: Normed) -> None:
    x = x.to(out.mean.dtype)
    groups, batch = out.mean.shape
    var, mean = torch.var_mean(x.view(groups, -1, batch), 1, correction=0)
    out.mean.copy_(mean)
    out.rstd.copy_((var + eps).rsqrt())
    _normalise(x, _of_groups(x, out.mean), _of_groups(x, out.rstd), gamma, beta, relu, out.y)


@register("group_norm_backward", "reference")
def group_norm_backward(
    dy: Tensor,
    x: Tensor,
    mean: Tensor,
    rstd: Tensor,
    gamma: Tensor,
    beta: Tensor,
    relu: bool,
    out: Gradients,
) -> None:
    x, dy = x.to(mean.dtype), dy.to(mean.dtype)
    groups, batch = mean.shape
    xhat, g = _affine_gradients(dy, x, _of_groups(x, mean), _of_groups(x, rstd), gamma, beta, relu, out)
    along = [_of_groups(x, (g * t).view(groups, -1, batch).mean(1)) for t in (torch.ones_like(xhat), xhat)]
    out.dx.copy_(_of_groups(x, rstd) * (g - along[0] - xhat * along[1]))


@register("batch_norm", "reference")
def batch_norm(
    x: Tensor,
    gamma: Tensor,
    beta: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    training: bool,
    eps: float,
    relu: bool,
    out: Normed,
) -> None:
    x = x.to(out.mean.dtype)
    mean, var = running_mean, running_var
    if training:
        var, mean = torch.var_mean(x, (1, 2, 3), correction=0)
        if running_mean is not None:
            n = x[0].numel()
            running_mean.lerp_(mean, momentum)
            running_var.lerp_(var * n / (n - 1), momentum)
    out.mean.copy_(mean)
    out.rstd.copy_((var + eps).rsqrt())
    _normalise(x, _of_channels(out.mean), _of_channels(out.rstd), gamma, beta, relu, out.y)


@register("batch_norm_backward", "reference")
def batch_norm_backward(
    dy: Tensor,
    x: Tensor,
    mean: Tensor,
    rstd: Tensor,
    gamma: Tensor,
    beta: Tensor,
    training: bool,
    relu: bool,
    out: Gradients,
) -> None:
    x, dy = x.to(mean.dtype), dy.to(mean.dtype)
    xhat, g = _affine_gradients(dy, x, _of_channels(mean), _of_channels(rstd), gamma, beta, relu, out)
    if training:
        axes = (1, 2, 3)
        g = g - g.mean(axes, keepdim=True) - xhat * (g * xhat).mean(axes, keepdim=True)
    out.dx.copy_(_of_channels(rstd) * g)


def _normalise(
    x: Tensor, mean: Tensor, rstd: Tensor, gamma: Tensor, beta: Tensor, relu: bool, y: Tensor
) -> None:
    found = (x - mean) * rstd
    if gamma is not None:
        found.mul_(_of_channels(gamma))
    if beta is not None:
        found.add_(_of_channels(beta))
    y.copy_(found.relu_() if relu else found)


def _affine_gradients(
    dy: Tensor,
    x: Tensor,
    mean: Tensor,
    rstd: Tensor,
    gamma: Tensor,
    beta: Tensor,
    relu: bool,
    out: Gradients,
) -> tuple[Tensor, Tensor]:
    """Fills dgamma and dbeta; xhat, and the gradient of gamma xhat + beta by xhat."""
    xhat = (x - mean) * rstd
    if relu:
        y = torch.empty_like(x)
        _normalise(x, mean, rstd, gamma, beta, True, y)
        dy = torch.where(y <= 0, 0.0, dy)
    if out.dgamma is not None:
        out.dgamma.copy_((dy * xhat).sum((1, 2, 3)))
    if out.dbeta is not None:
        out.dbeta.copy_(dy.sum((1, 2, 3)))
    return xhat, dy if gamma is None else dy * _of_channels(gamma)


def _of_groups(x: Tensor, statistic: Tensor) -> Tensor:
    """[groups, batch] -> [channels, 1, 1, batch]"""
    return statistic.repeat_interleave(x.shape[0] // len(statistic), 0)[:, None, None, :]


def _of_channels(statistic: Tensor) -> Tensor:
    """[channels] -> [channels, 1, 1, 1]"""
    return statistic[:, None, None, None]
