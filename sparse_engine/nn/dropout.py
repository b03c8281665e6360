"""Autograd over dropout without a state: which entries stay follows from two numbers (kernels/dropout)."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sparsefl.kernels import dropout as kernel


def dropout(x: Tensor, p: float, *, seed: int, step: int) -> Tensor:
    """Return samples x [N, ...] with entries dropped with probability p and the others divided by 1 - p.

    seed, step  decide which, together with an entry's place in its sample and the sample's in the batch
    """
    return _Dropout.apply(x, p, seed, step)


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float, seed: int, step: int) -> Tensor:
        ctx.how = p, seed, step
        return _dropped(x, *ctx.how)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        return _dropped(dy, *ctx.how), None, None, None


def _dropped(x: Tensor, p: float, seed: int, step: int) -> Tensor:
    """In the memory order of x."""
    last = x.movedim(0, -1)
    y = kernel.dropout(last.contiguous(), p, seed=seed, step=step).movedim(-1, 0)
    return y if last.is_contiguous() else torch.empty_like(x).copy_(y)
