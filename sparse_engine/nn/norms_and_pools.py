"""Autograd over what has no prunable weight, on batch-last images: norms, pools, ReLU and residual sums.

ReLU and sums are torch's; their results come from our pool of buffers like everything else here.

Images, also those returned, are [N, C, H, W] whose memory is [C, H, W, N]. The Functions see planes.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sparse_engine.nn.batch_last import to_images, to_planes
from sparsefl.kernels import memory, norm, pool
from sparsefl.kernels.pool import Window


def group_norm(x: Tensor, groups: int, gamma: Tensor | None, beta: Tensor | None, eps: float) -> Tensor:
    return to_images(_GroupNorm.apply(to_planes(x), gamma, beta, groups, eps))


def batch_norm(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    gamma: Tensor | None,
    beta: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Tensor:
    """Return normalised images; update the running statistics in place when training."""
    running = running_mean, running_var
    return to_images(_BatchNorm.apply(to_planes(x), gamma, beta, *running, training, momentum, eps))


def max_pool(x: Tensor, window: Window) -> Tensor:
    if x.dtype == torch.bfloat16:  # pools have float kernels: no precision is lost on the way
        return max_pool(x.float(), window).to(x.dtype)
    return to_images(_MaxPool.apply(to_planes(x), window))


def average_pool(x: Tensor, window: Window | tuple[int, int]) -> Tensor:
    """Return the pooled images. `window` may be the size of the output instead: an adaptive pool."""
    if x.dtype == torch.bfloat16:
        return average_pool(x.float(), window).to(x.dtype)
    return to_images(_AveragePool.apply(to_planes(x), window))


def relu(x: Tensor) -> Tensor:
    return to_images(_Relu.apply(to_planes(x)))


def add(a: Tensor, b: Tensor) -> Tensor:
    return to_images(_Add.apply(to_planes(a), to_planes(b)))


class _Relu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = torch.clamp_min(x, 0, out=memory.empty(x.shape, x))
        ctx.save_for_backward(y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return torch.ops.aten.threshold_backward(dy, y, 0, grad_input=memory.empty(y.shape, y))


class _Add(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        return torch.add(a, b, out=memory.empty(a.shape, a))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor]:
        return dy, dy


class _GroupNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, gamma: Tensor | None, beta: Tensor | None, groups: int, eps: float
    ) -> Tensor:
        out = norm.group_norm(x, groups, gamma, beta, eps=eps)
        ctx.save_for_backward(x, out.mean, out.rstd, gamma, beta)
        return out.y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        found = norm.group_norm_backward(dy.contiguous(), *ctx.saved_tensors)
        return found.dx, found.dgamma, found.dbeta, None, None


class _BatchNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        gamma: Tensor | None,
        beta: Tensor | None,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        training: bool,
        momentum: float,
        eps: float,
    ) -> Tensor:
        running = running_mean, running_var
        out = norm.batch_norm(x, gamma, beta, *running, training=training, momentum=momentum, eps=eps)
        ctx.training = training
        ctx.save_for_backward(x, out.mean, out.rstd, gamma, beta)
        return out.y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        found = norm.batch_norm_backward(dy.contiguous(), *ctx.saved_tensors, training=ctx.training)
        return found.dx, found.dgamma, found.dbeta, *[None] * 5


class _MaxPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, window: Window) -> Tensor:
        out = pool.max_pool(window, x)
        ctx.window, ctx.size = window, (x.shape[1], x.shape[2])
        ctx.save_for_backward(out.tap)
        return out.y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        (index,) = ctx.saved_tensors
        return pool.max_pool_backward(ctx.window, dy.contiguous(), index, ctx.size), None


class _AveragePool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, window: Window | tuple[int, int]) -> Tensor:
        ctx.window, ctx.size = window, (x.shape[1], x.shape[2])
        if isinstance(window, Window):
            return pool.average_pool(window, x)
        return pool.adaptive_average_pool(x, window)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        dy = dy.contiguous()
        if isinstance(ctx.window, Window):
            return pool.average_pool_backward(ctx.window, dy, ctx.size), None
        return pool.adaptive_average_pool_backward(dy, ctx.size), None
