"""Masked-dense PyTorch, written as well as we can: what our kernels are compared with.

Every rival works in place on buffers that it was given and makes no needless temporary. `blocked` runs a
formulation on pieces that stay in the cache, which few people would write but PyTorch allows.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.optim.sgd import sgd as torch_sgd

PIECE = 1 << 18  # entries of a cache-sized piece: the best of 2^13 .. 2^18 here


def blocked(step: Callable[..., object], *tensors: Tensor) -> Callable[[], None]:
    pieces = list(zip(*(x.split(PIECE) for x in tensors), strict=True))

    def run() -> None:
        for piece in pieces:
            step(*piece)

    return run


def sgd(w: Tensor, g: Tensor, m: Tensor, lr: float, weight_decay: float) -> dict[str, Callable[[], object]]:
    """w stays masked as long as it starts masked: decay keeps zeros, and the gradient is multiplied by m."""

    def plain(w: Tensor, g: Tensor, m: Tensor) -> None:
        w.mul_(1 - lr * weight_decay).addcmul_(g, m, value=-lr)

    def fused() -> None:
        g.mul_(m)
        torch_sgd(
            [w], [g], [None], weight_decay=weight_decay, momentum=0.0, lr=lr, dampening=0.0, nesterov=False,
            maximize=False, fused=True,
        )  # fmt: skip

    return {
        "torch": lambda: plain(w, g, m),
        "torch blocked": blocked(plain, w, g, m),
        "torch fused SGD": fused,
    }


def momentum_sgd(
    w: Tensor, g: Tensor, u: Tensor, m: Tensor, lr: float, momentum: float, weight_decay: float
) -> dict[str, Callable[[], object]]:
    def plain(w: Tensor, g: Tensor, u: Tensor, m: Tensor) -> None:
        u.mul_(momentum).add_(w, alpha=weight_decay).addcmul_(g, m)
        w.add_(u, alpha=-lr)

    return {"torch": lambda: plain(w, g, u, m), "torch blocked": blocked(plain, w, g, u, m)}


def average(dense: Sequence[Tensor], masks: Sequence[Tensor], out: Tensor) -> dict[str, Callable[[], object]]:
    """The first model is the own one. Counts as float32, or as bytes that are converted once."""
    floats, bytes_ = [m.float() for m in masks], [m.to(torch.uint8) for m in masks]
    count, small = torch.empty_like(out), torch.empty(out.numel(), dtype=torch.uint8)
    models = len(dense)

    def in_float(*x: Tensor) -> None:
        total, count, w, m = x[0], x[1], x[2 : 2 + models], x[2 + models :]
        torch.add(w[0], w[1], out=total)
        torch.add(m[0], m[1], out=count)
        for j in range(2, models):
            total.add_(w[j])
            count.add_(m[j])
        total.div_(count.clamp_(min=1)).mul_(m[0])

    def in_bytes(*x: Tensor) -> None:
        total, count, small, own, w, m = x[0], x[1], x[2], x[3], x[4 : 4 + models], x[4 + models :]
        torch.add(w[0], w[1], out=total)
        torch.add(m[0], m[1], out=small)
        for j in range(2, models):
            total.add_(w[j])
            small.add_(m[j])
        total.div_(count.copy_(small).clamp_(min=1)).mul_(own)

    by_float, by_byte = (out, count, *dense, *floats), (out, count, small, floats[0], *dense, *bytes_)
    return {
        "torch": lambda: in_float(*by_float),
        "torch, counts in bytes": lambda: in_bytes(*by_byte),
        "torch, counts in bytes, blocked": blocked(in_bytes, *by_byte),
    }


def pq_sums(layers: Sequence[Tensor], buffer: Tensor) -> dict[str, Callable[[], object]]:
    """Sum of |w| and of |w|^(1/2) for every layer; zeros outside the mask add nothing."""

    def root(w: Tensor) -> None:
        a = buffer[: w.numel()]
        torch.abs(w, out=a)
        a.sum()
        a.sqrt_().sum()

    def reciprocal_root(w: Tensor) -> None:
        a = torch.abs(w, out=buffer[: w.numel()])
        a.sum()
        torch.dot(a, a.clamp(min=1e-30).rsqrt_())

    def norms(w: Tensor) -> None:
        torch.linalg.vector_norm(w, 1)
        torch.linalg.vector_norm(w, 0.5)

    def every(step: Callable[[Tensor], None], parts: Sequence[Tensor]) -> Callable[[], object]:
        return lambda: [step(w) for w in parts]

    pieces = [piece for w in layers for piece in w.split(PIECE)]
    return {
        "torch": every(root, layers),
        "torch blocked": every(root, pieces),
        "torch rsqrt blocked": every(reciprocal_root, pieces),
        "torch vector_norm": every(norms, layers),
    }


def select(layers: Sequence[Tensor], ks: Sequence[int]) -> dict[str, Callable[[], object]]:
    """The k smallest magnitudes of every layer, on the packed values: the same entries as ours."""
    work = [(w, k) for w, k in zip(layers, ks, strict=True) if k]
    return {
        "torch.sort": lambda: [w.abs().sort().indices[:k] for w, k in work],
        "torch.topk": lambda: [w.abs().topk(k, largest=False, sorted=False).indices for w, k in work],
        "torch.kthvalue": lambda: [(a := w.abs()) <= a.kthvalue(k).values for w, k in work],
    }
