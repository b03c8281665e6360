"""Whole networks: an ordinary nn.Module into one with sparse layers, and back.

`sparsify` replaces the prunable Conv2d and Linear layers. Everything else stays the user's own code: between
sparse layers images are batch-last, elementwise operations keep that, and norms, pools and dense convolutions
on such images run on our kernels too (sparse_engine/intercept.py), also where they are called as functions.
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from sparse_engine.batch_last import to_images, to_planes
from sparse_engine.intercept import BatchLast
from sparse_engine.masks import erk_masks, uniform_masks
from sparse_engine.modules import EXEMPT, prunable
from sparse_engine.nn.conv import SparseConv2d
from sparse_engine.nn.layer import SparseLayer
from sparse_engine.nn.linear import SparseLinear


class Line(NamedTuple):
    """What became of one layer."""

    name: str
    kind: str  # "sparse", "dense" (our kernels, nothing pruned) or "torch"
    density: float
    why: str


def sparsify(
    net: nn.Module,
    density: float | None = None,
    distribution: str = "erk",
    seed: int = 0,
    masks: Mapping[str, Tensor] | None = None,
    exempt: str | Iterable[str] = EXEMPT,
) -> nn.Module:
    """A copy of `net` whose prunable layers are sparse: NCHW in, logits out, trains with autograd.

    Give `density` and `distribution` ("erk" or "uniform"), or the `masks` themselves. Weights outside a mask
    are dropped. Layers that the kernels cannot run stay torch; `report(net)` lists every layer with the
    reason.
    """
    weights = prunable(net, exempt)
    able = {name: w for name, w in weights.items() if _obstacle(net, name) is None}
    chosen = _masks(able, density, distribution, seed, masks)
    sparse = copy.deepcopy(net)
    for name, mask in chosen.items():
        path = name.removesuffix("weight").removesuffix(".")
        layer = sparse.get_submodule(path)
        made = _sparse(layer, mask)
        made.train(layer.training)
        if not path:
            sparse = made
        else:
            parent, _, attribute = path.rpartition(".")
            setattr(sparse.get_submodule(parent), attribute, made)
    return _wrapped(sparse)


def to_dense(net: nn.Module) -> nn.Module:
    """The same network as plain torch modules, zeros where nothing is stored."""
    dense = copy.deepcopy(net)
    if isinstance(dense, _Wrapped):
        dense.__class__ = dense.__class__.__mro__[2]
    if isinstance(dense, SparseLayer):
        return dense.to_dense()
    for path, layer in list(dense.named_modules()):
        if isinstance(layer, SparseLayer):
            parent, _, attribute = path.rpartition(".")
            setattr(dense.get_submodule(parent), attribute, layer.to_dense())
    return dense


def report(net: nn.Module) -> list[Line]:
    """Every layer with a weight of two or more dimensions: how it runs, and why."""
    lines = []
    for path, layer in net.named_modules():
        if isinstance(layer, SparseLayer):
            lines.append(Line(path, "sparse", layer.pattern.density, ""))
        elif isinstance(getattr(layer, "weight", None), Tensor) and layer.weight.dim() > 1:
            reason = _reason(layer)
            lines.append(Line(path, "torch" if reason else "dense", 1.0, reason or "exempt from pruning"))
    return lines


@contextmanager
def dense_gradients(net: nn.Module, use: Callable[[str, Tensor], None]) -> Iterator[None]:
    """While this is open, backward hands `use` the dense gradient of each sparse weight, one layer at a time.

    The gradient has the dense weight's shape and may be kept or dropped; nobody else keeps it.
    """
    layers = {
        f"{p}.weight" if p else "weight": m for p, m in net.named_modules() if isinstance(m, SparseLayer)
    }
    for name, layer in layers.items():
        layer.watch = partial(_hand_on, use, name, layer.pattern.shape)
    try:
        yield
    finally:
        for layer in layers.values():
            layer.watch = None


def _hand_on(use: Callable[[str, Tensor], None], name: str, shape: tuple[int, ...], gradient: Tensor) -> None:
    use(name, gradient.view(shape))


class _Wrapped(nn.Module):
    """Put before the network's own class, whose forward `super()` finds: runs it with batch-last images."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        args = tuple(to_images(to_planes(x)) if _is_image(x) else x for x in args)
        with BatchLast():
            return super().forward(*args, **kwargs)


def _wrapped(net: nn.Module) -> nn.Module:
    """The instance gets a class of its own, as torch.nn.utils.parametrize does it: names and methods stay."""
    if not isinstance(net, _Wrapped):
        net.__class__ = type(f"Sparse{type(net).__name__}", (_Wrapped, type(net)), {})
    return net


def _is_image(x: object) -> bool:
    return isinstance(x, Tensor) and x.dim() == 4 and x.dtype == torch.float32


def _masks(
    weights: dict[str, Tensor],
    density: float | None,
    distribution: str,
    seed: int,
    masks: Mapping[str, Tensor] | None,
) -> dict[str, Tensor]:
    if (density is None) == (masks is None):
        raise ValueError(
            "expected either a density or masks, got " + ("neither" if masks is None else "both")
        )
    shapes = {name: tuple(w.shape) for name, w in weights.items()}
    if masks is not None:
        wrong = [name for name, m in masks.items() if name not in shapes or tuple(m.shape) != shapes[name]]
        if wrong:
            raise ValueError(f"expected masks for {shapes}, got others for {wrong}")
        return {name: masks.get(name, torch.ones(shape, dtype=torch.bool)) for name, shape in shapes.items()}
    makers = {"erk": erk_masks, "uniform": uniform_masks}
    if distribution not in makers:
        raise ValueError(f"expected a distribution out of {list(makers)}, got {distribution!r}")
    assert density is not None  # one of the two is given
    return makers[distribution](shapes, density, seed=seed)


def _sparse(layer: nn.Module, mask: Tensor) -> SparseLayer:
    if isinstance(layer, nn.Linear):
        return SparseLinear.from_dense(layer, mask)
    assert isinstance(layer, nn.Conv2d)  # `_reason` lets nothing else pass
    return SparseConv2d.from_dense(layer, mask)


def _obstacle(net: nn.Module, name: str) -> str | None:
    return _reason(net.get_submodule(name.removesuffix("weight").removesuffix(".")))


def _reason(layer: nn.Module) -> str | None:
    """Why a layer stays with torch; None when our kernels run it."""
    if layer.weight.dtype != torch.float32:
        return f"weight is {layer.weight.dtype}"
    if isinstance(layer, nn.Conv2d):
        return SparseConv2d.obstacle(layer)
    return None if isinstance(layer, nn.Linear) else f"no sparse kernel for {type(layer).__name__}"
