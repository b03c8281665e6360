"""Plain torch: the specification of a group's sums, means and gates."""

import torch
from torch import Tensor

from sparsefl.kernels.group import Layer
from sparsefl.kernels.registry import register


@register("group_add", "reference")
def group_add(a: Tensor, b: Tensor | None, y: Tensor, relu: bool) -> None:
    total = a if b is None else a + b
    y.copy_(total.relu() if relu else total)


@register("group_add_gradient", "reference")
def group_add_gradient(dy: Tensor, y: Tensor | None, dx: Tensor, more: bool) -> None:
    d = dy if y is None else torch.where(y > 0, dy, 0.0)
    dx.copy_(dx + d if more else d)


@register("group_mean", "reference")
def group_mean(x: Tensor, window: tuple[int, int], y: Tensor) -> None:
    (kh, kw), (h, w) = window, y.shape[2:4]
    y.copy_(x[:, :, : h * kh, : w * kw].reshape(*x.shape[:2], h, kh, w, kw, -1).mean((3, 5)))


@register("group_mean_gradient", "reference")
def group_mean_gradient(dy: Tensor, window: tuple[int, int], dx: Tensor, more: bool) -> None:
    (kh, kw), (h, w) = window, dy.shape[2:4]
    found = torch.zeros_like(dx)
    spread = dy.repeat_interleave(kh, 2).repeat_interleave(kw, 3)
    found[:, :, : h * kh, : w * kw] = spread / (kh * kw)
    dx.copy_(dx + found if more else found)


@register("group_opened", "reference")
def group_opened(layer: Layer, dy: Tensor, gate: Tensor, dz: Tensor) -> None:
    (ph, pw), (h, w) = layer.pool, layer.pooled
    dz.zero_()
    for i in range(ph):
        for j in range(pw):
            dz[:, :, i : h * ph : ph, j : w * pw : pw] = torch.where(gate == i * pw + j, dy, 0.0)
