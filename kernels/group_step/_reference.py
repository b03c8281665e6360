"""Plain torch: the specification of a group's batches, loss and step."""

import torch
import torch.nn.functional as F
from torch import Tensor

from sparsefl.kernels.registry import register


@register("group_gather", "reference")
def group_gather(
    data: Tensor, scale: Tensor, order: Tensor, clock: Tensor, x: Tensor, moves: Tensor | None
) -> None:
    clock[0] = clock[1]
    chosen = order[int(clock[0])].long()
    images = data[chosen.clamp(min=0)].to(x.dtype)  # [G, B, C, H, W]
    if moves is not None:
        height, width = data.shape[2:]
        row, column, mirrored = moves[int(clock[0])].long().unbind(-1)
        h = torch.arange(height) + row[..., None]  # [G, B, H]
        w = torch.arange(width)
        w = torch.where(mirrored[..., None] != 0, width - 1 - w, w) + column[..., None]
        inside = ((h >= 0) & (h < height))[..., :, None] & ((w >= 0) & (w < width))[..., None, :]
        at = h.clamp(0, height - 1)[..., :, None] * width + w.clamp(0, width - 1)[..., None, :]
        flat = images.flatten(3)
        taken = flat.gather(3, at.flatten(2)[:, :, None].expand(flat.shape)).view(images.shape)
        images = torch.where(inside[:, :, None], taken, 0.0)
    mean, std = scale.to(x.dtype)[..., None, None]
    images = (images - mean) / std
    x.copy_(torch.where((chosen >= 0)[..., None, None, None], images, 0.0).movedim(1, -1))


def _valid(labels: Tensor, order: Tensor, clock: Tensor) -> tuple[Tensor, Tensor]:
    chosen = order[int(clock[0])].long()
    return labels[chosen.clamp(min=0)].long(), chosen >= 0


@register("group_loss", "reference")
def group_loss(
    logits: Tensor, labels: Tensor, order: Tensor, clock: Tensor, losses: Tensor, dz: Tensor
) -> None:
    classes, valid = _valid(labels, order, clock)
    scores = logits[:, :, 0, 0]  # [G, classes, B]
    each = F.cross_entropy(scores, classes, reduction="none")
    losses[int(clock[0])] = torch.where(valid, each, 0.0).sum(1)
    onehot = F.one_hot(classes, scores.shape[1]).movedim(-1, 1)
    gradient = (scores.softmax(1) - onehot) / valid.sum(1).clamp(min=1)[:, None, None]
    dz.copy_(torch.where(valid[:, None], gradient, 0.0).view(dz.shape))


@register("group_hits", "reference")
def group_hits(logits: Tensor, labels: Tensor, order: Tensor, clock: Tensor, found: Tensor) -> None:
    classes, valid = _valid(labels, order, clock)
    found[int(clock[0])] = ((logits[:, :, 0, 0].argmax(1) == classes) & valid).sum(1).int()
    clock[1] = clock[0] + 1


@register("group_squares", "reference")
def group_squares(g: Tensor, runs: Tensor, sums: Tensor) -> None:
    for i, (lo, hi, *_) in enumerate(runs.tolist()):
        sums[i] = g[lo:hi].double().square().sum()


@register("group_sgd_", "reference")
def group_sgd_(
    w: Tensor,
    g: Tensor,
    u: Tensor | None,
    runs: Tensor,
    order: Tensor,
    clock: Tensor,
    numbers: Tensor,
    sums: Tensor | None,
) -> None:
    rate, momentum, decay, max_norm = numbers.to(w.dtype)
    has = (order[int(clock[0])] >= 0).any(1)
    for lo, hi, client, first, end in runs.tolist():
        if has[client]:
            here = slice(lo, hi)
            scale = 1.0
            if sums is not None:
                scale = min(1.0, float(max_norm) / (float(sums[first:end].sum().sqrt()) + 1e-6))
            d = scale * g[here] + decay * w[here]
            if u is not None:
                u[here] = momentum * u[here] + d
                d = u[here]
            w[here] -= rate * d
    clock[1] = clock[0] + 1
