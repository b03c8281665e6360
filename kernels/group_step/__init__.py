"""What a training step of a group needs besides its layers: batches, the loss, the step of SGD.

    gather   x[g, ..., b] = (data[order[t, g, b]] - mean) / std,   0 where order is -1: an empty lane
    loss     losses[t, g] = sum over b of cross-entropy,   dz = (softmax - onehot) / samples of the batch
    hits     hits[t, g] = samples whose largest logit is that of their class
    squares  sums[run] = sum of g^2 over a run, float64
    sgd_     d = s g + lambda w,   u <- mu u + d,   w <- w - eta u,   where client g has a batch in step t
             s = min(1, max_norm / (|g| + 1e-6)) of the client, where sums are given; else 1

The step t is read from the card's memory, like eta, mu and lambda (`numbers`): the same launches are every
step, which is what a CUDA graph replays. `clock` is int64 [2]: t, and the step after it. `gather` begins a
step (t is the one after), `sgd_` and `hits` end it; no launch reads what it writes there.
"""

import torch
from torch import Tensor

from sparsefl.kernels import checks, registry
from sparsefl.kernels.group import BATCHES, CHUNK

__all__ = ["gather", "hits", "loss", "sgd_", "squares"]

_call = registry.bind(__name__)


def gather(
    data: Tensor, scale: Tensor, order: Tensor, clock: Tensor, x: Tensor, moves: Tensor | None = None
) -> None:
    """Writes the batch of step t into x [G, C, H, W, B].

    data   uint8 or float32 [samples, C, H, W]
    scale  float32 [2, C]: mean and std
    order  int32 [steps, G, B]: samples, -1: none
    clock  int64 [2]
    moves  int32 [steps, G, B, 3]: row, column and mirrored of images that are cut out of themselves, with
           rows and columns from -padding to padding; what is outside is 0 before it is normalised
    """
    checks.dtype(torch.uint8, torch.float32, data=data)
    checks.dtype(torch.float32, torch.float64, x=x)
    _check_order(order, clock, x)
    if data.dim() != 4 or x.dim() != 5 or data.shape[1:] != x.shape[1:4]:
        raise ValueError(f"expected samples of the shape of x, got {tuple(data.shape)} and {tuple(x.shape)}")
    if tuple(scale.shape) != (2, data.shape[1]):
        raise ValueError(f"expected mean and std of {data.shape[1]} channels, got {tuple(scale.shape)}")
    checks.contiguous(data=data, scale=scale, x=x)
    checks.same_device(data=data, scale=scale, order=order, x=x)
    if moves is not None:
        checks.dtype(torch.int32, moves=moves)
        checks.contiguous(moves=moves)
        if tuple(moves.shape) != (*order.shape, 3):
            raise ValueError(f"expected moves {(*order.shape, 3)}, got {tuple(moves.shape)}")
    _call("group_gather", x.device, data, scale, order, clock, x, moves)


def loss(logits: Tensor, labels: Tensor, order: Tensor, clock: Tensor, losses: Tensor, dz: Tensor) -> None:
    """Writes row t of losses [steps, G] and dz, the gradient of the logits [G, classes, 1, 1, B].

    labels  int32 [samples]
    """
    _check_logits(logits, labels, order, clock)
    checks.same_shape(logits=logits, dz=dz)
    checks.same_dtype(logits=logits, dz=dz, losses=losses)
    checks.contiguous(dz=dz, losses=losses)
    if tuple(losses.shape) != tuple(order.shape[:2]):
        raise ValueError(f"expected losses {tuple(order.shape[:2])}, got {tuple(losses.shape)}")
    _call("group_loss", logits.device, logits, labels, order, clock, losses, dz)


def hits(logits: Tensor, labels: Tensor, order: Tensor, clock: Tensor, found: Tensor) -> None:
    """Writes row t of found, int32 [steps, G]."""
    _check_logits(logits, labels, order, clock)
    checks.dtype(torch.int32, found=found)
    checks.contiguous(found=found)
    if tuple(found.shape) != tuple(order.shape[:2]):
        raise ValueError(f"expected hits {tuple(order.shape[:2])}, got {tuple(found.shape)}")
    _call("group_hits", logits.device, logits, labels, order, clock, found)


def squares(g: Tensor, runs: Tensor, sums: Tensor) -> None:
    """Writes the sum of squares of every run into sums, float64 [runs]."""
    checks.flat(g=g, sums=sums)
    _check_runs(runs)
    checks.dtype(torch.float64, sums=sums)
    checks.length(len(runs), "runs", sums=sums)
    checks.same_device(g=g, runs=runs, sums=sums)
    _call("group_squares", g.device, g, runs, sums)


def sgd_(
    w: Tensor,
    g: Tensor,
    u: Tensor | None,
    runs: Tensor,
    order: Tensor,
    clock: Tensor,
    numbers: Tensor,
    sums: Tensor | None = None,
) -> None:
    """One step on the arena of a group, in place on w, u and clock.

    runs     int64 [runs, 5]: what belongs to which client (`kernels.group.runs`)
    numbers  float32 [4]: eta, mu, lambda, max_norm; u is None where mu is 0
    sums     what `squares` wrote, where gradients are clipped
    """
    tensors = {"w": w, "g": g} | ({} if u is None else {"u": u})
    checks.flat(**tensors)
    checks.same_dtype(**tensors)
    checks.same_shape(**tensors)
    checks.dtype(torch.int64, clock=clock)
    checks.dtype(torch.int32, order=order)
    checks.length(4, "numbers: eta, mu, lambda, max_norm", numbers=numbers)
    checks.contiguous(order=order)
    _check_runs(runs)
    checks.same_device(w=w, runs=runs, order=order, clock=clock, numbers=numbers)
    if sums is not None:
        checks.dtype(torch.float64, sums=sums)
        checks.length(len(runs), "runs", sums=sums)
        checks.same_device(w=w, sums=sums)
    _call("group_sgd_", w.device, w, g, u, runs, order, clock, numbers, sums)


def _check_runs(runs: Tensor) -> None:
    checks.dtype(torch.int64, runs=runs)
    checks.contiguous(runs=runs)
    if runs.dim() != 2 or runs.shape[1] != 5:
        raise ValueError(f"expected runs [n, 5] of up to {CHUNK} numbers, got {tuple(runs.shape)}")


def _check_order(order: Tensor, clock: Tensor, x: Tensor) -> None:
    checks.dtype(torch.int32, order=order)
    checks.dtype(torch.int64, clock=clock)
    checks.contiguous(order=order)
    checks.length(2, "numbers: this step and the next", clock=clock)
    if order.dim() != 3 or order.shape[1:] != (x.shape[0], x.shape[-1]) or x.shape[-1] not in BATCHES:
        wanted = f"[steps, {x.shape[0]}, {x.shape[-1]}] with a batch of {' or '.join(map(str, BATCHES))}"
        raise ValueError(f"expected order {wanted}, got {tuple(order.shape)}")


def _check_logits(logits: Tensor, labels: Tensor, order: Tensor, clock: Tensor) -> None:
    if logits.dim() != 5 or logits.shape[2:4] != (1, 1):
        raise ValueError(f"expected logits [G, classes, 1, 1, B], got {tuple(logits.shape)}")
    _check_order(order, clock, logits)
    checks.dtype(torch.float32, torch.float64, logits=logits)
    checks.dtype(torch.int32, labels=labels)
    checks.contiguous(logits=logits, labels=labels)
    checks.same_device(logits=logits, labels=labels, order=order, clock=clock)
