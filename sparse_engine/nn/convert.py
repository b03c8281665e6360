"""Whole networks: an ordinary nn.Module into one with sparse layers, and back.

`sparsify` replaces the prunable Conv2d and Linear layers. Everything else stays the user's own code: between
sparse layers images are batch-last, elementwise operations keep that, and norms, pools and dense convolutions
on such images run on our kernels too (sparse_engine/nn/intercept.py), also where they are functions.
"""

import copy
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from sparse_engine.model.masks import erk_masks, uniform_masks
from sparse_engine.nn import precision as precisions
from sparse_engine.nn.bridge import EXEMPT, prunable
from sparse_engine.nn.conv import SparseConv2d
from sparse_engine.nn.layer import SparseLayer
from sparse_engine.nn.linear import SparseLinear
from sparse_engine.nn.obstacles import FAST_PATHS, lazy_layers, obstacles
from sparse_engine.nn.rows import Row, weight_rows
from sparse_engine.nn.wrapped import Wrapped, unwrap, wrap

_BEFORE = "_before_sparsify"  # of a module whose fast path is off: the value that `to_dense` puts back


def sparsify(
    net: nn.Module,
    density: float | None = None,
    distribution: str = "erk",
    seed: int = 0,
    masks: Mapping[str, Tensor] | None = None,
    exempt: str | Iterable[str] = EXEMPT,
    precision: str = "fp32",
) -> nn.Module:
    """Return a copy of `net` with sparse prunable layers: the same inputs and outputs, trains with autograd.

    density       share of the weights that is stored, above 0 and at most 1, in the layers that can be sparse
    distribution  how layers share it: "erk" (small layers get a higher density) or "uniform"
    seed          decides which entries are stored
    masks         instead of a density: {weight's name: bool tensor in its shape}; one without is stored whole
    exempt        names of weights, or glob patterns, that stay dense
    precision     "fp32", or "bf16": activations and their gradients in bfloat16 (docs/precision.md)

    Entries outside a mask are dropped. What cannot be sparse stays dense: `se.report(net)` lists every weight
    with the reason, and a warning says so if that is more than half of the weights.

    >>> import torch, sparse_engine as se
    >>> net = se.sparsify(torch.nn.Sequential(torch.nn.Linear(20, 50), torch.nn.Linear(50, 2)), density=0.1)
    >>> net(torch.randn(3, 20)).shape
    torch.Size([3, 2])
    >>> sum(layer.weight.numel() for layer in net)  # of 1,100; each layer rounds down
    109
    """
    _check(net, density, masks)
    precisions.check(precision, net)
    weights = prunable(net, exempt)
    chosen = _masks(net, weights, density, distribution, seed, masks)
    if density is not None:
        _warn_of_little(net, density, weights, weight_rows(net))
        _warn_of_nothing(density, chosen)
    sparse = copy.deepcopy(net)
    made = {}
    for name, mask in chosen.items():
        layer = sparse.get_submodule(name.removesuffix("weight").removesuffix("."))
        made[layer] = _sparse(layer, mask)
    _call_layers(sparse, made)
    return precisions.mark(wrap(_replaced(sparse, made)), precision)


def to_dense(net: nn.Module) -> nn.Module:
    """Return a copy of the network as plain torch modules, with zeros where nothing is stored.

    >>> import torch, sparse_engine as se
    >>> se.to_dense(se.sparsify(torch.nn.Linear(20, 50), density=0.1))
    Linear(in_features=20, out_features=50, bias=True)
    """
    dense = copy.deepcopy(net)
    for module in list(dense.modules()):
        unwrap(module)
        module.__dict__.pop(precisions.NAME, None)
        for name, value in module.__dict__.pop(_BEFORE, {}).items():
            setattr(module, name, value)
    return _replaced(dense, {m: m.to_dense() for m in dense.modules() if isinstance(m, SparseLayer)})


@contextmanager
def dense_gradients(net: nn.Module, use: Callable[[str, Tensor], None]) -> Iterator[None]:
    """A context in which a backward pass calls `use(name, gradient)` once per sparse weight.

    net  a network from `se.sparsify`
    use  receives the weight's name and its dense gradient, in the dense weight's shape, layer by layer;
         nobody else keeps the gradient

    >>> import torch, sparse_engine as se
    >>> net = se.sparsify(torch.nn.Linear(20, 50), density=0.1)
    >>> with se.dense_gradients(net, lambda name, gradient: print(name, gradient.shape)):
    ...     net(torch.randn(3, 20)).sum().backward()
    weight torch.Size([50, 20])
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


def _check(net: nn.Module, density: float | None, masks: Mapping[str, Tensor] | None) -> None:
    if (density is None) == (masks is None):
        raise ValueError(
            "expected either a density or masks, got " + ("neither" if masks is None else "both")
        )
    if density is not None and not 0 < density <= 1:
        raise ValueError(
            f"expected a density above 0 (which would store no weight at all) and at most 1, got {density}"
        )
    lazy = lazy_layers(net)
    if lazy:
        raise ValueError(
            f"expected a network that knows its shapes, got lazy layers {lazy}: run a batch through it first"
        )
    scripted = [path for path, m in net.named_modules() if isinstance(m, torch.jit.ScriptModule)]
    if scripted:
        raise ValueError(
            f"expected a network in Python, got scripted modules {scripted}: script no part of it"
        )
    frail = [path for path, m in net.named_modules() if any(map(_is_result, m.__dict__.values()))]
    if frail:  # deepcopy would refuse it, in other words
        raise ValueError(
            f"expected a network that can be copied, got weights that a hook computes, in {frail}: "
            "make them parameters first (torch.nn.utils.prune.remove, torch.nn.utils.remove_weight_norm)"
        )
    sparse = [path for path, m in net.named_modules() if isinstance(m, SparseLayer | Wrapped)]
    if sparse:
        raise ValueError(
            f"expected a dense network, got one that is sparse already ({sparse[0] or type(net).__name__}): "
            "give se.to_dense(net)"
        )


def _is_result(x: object) -> bool:
    return isinstance(x, Tensor) and not x.is_leaf


def _masks(
    net: nn.Module,
    weights: dict[str, Tensor],
    density: float | None,
    distribution: str,
    seed: int,
    masks: Mapping[str, Tensor] | None,
) -> dict[str, Tensor]:
    shapes = {name: tuple(w.shape) for name, w in weights.items()}
    if masks is not None:
        dense = {f"{path}.weight" if path else "weight": why for path, why in obstacles(net).items() if why}
        stay = {name: dense[name] for name in masks if name in dense}
        if stay:
            raise ValueError(f"expected masks of weights that can be sparse, got {stay}")
        wrong = [name for name, m in masks.items() if name not in shapes or tuple(m.shape) != shapes[name]]
        if wrong:
            raise ValueError(f"expected masks for {shapes}, got others for {wrong}")
        return {name: masks.get(name, torch.ones(shape, dtype=torch.bool)) for name, shape in shapes.items()}
    makers = {"erk": erk_masks, "uniform": uniform_masks}
    if distribution not in makers:
        raise ValueError(f"expected a distribution out of {list(makers)}, got {distribution!r}")
    assert density is not None  # one of the two is given
    return makers[distribution](shapes, density, seed=seed)


def _warn_of_little(
    net: nn.Module, density: float, weights: Mapping[str, Tensor], rows: Iterable[Row]
) -> None:
    """Warn if most weights cannot be sparse. What the user exempts does not count."""
    covered = sum(w.numel() for w in weights.values())
    unable = sorted(
        (row for row in rows if row.kind == "torch" and row.weights), key=lambda row: -row.weights
    )
    total = covered + sum(row.weights for row in unable)
    if 2 * covered >= total:
        return
    largest = "; ".join(f"{row.name or row.module} ({row.weights:,}): {row.why}" for row in unable[:3])
    more = f"; and {len(unable) - 3} more" if len(unable) > 3 else ""
    warnings.warn(
        f"density {density} covers {covered / total:.1%} of the weights, the rest stays dense: "
        f"{largest}{more} (print(se.report(net)) lists all)",
        stacklevel=3,
    )


def _warn_of_nothing(density: float, masks: Mapping[str, Tensor]) -> None:
    empty = [name for name, mask in masks.items() if not mask.any()]
    if empty:
        warnings.warn(
            f"density {density} stores nothing of {', '.join(empty)}: what these layers return is their bias "
            "alone; give a higher density, or exempt them",
            stacklevel=3,
        )


def _sparse(layer: nn.Module, mask: Tensor) -> SparseLayer:
    if isinstance(layer, nn.Linear):
        return SparseLinear.from_dense(layer, mask)
    assert isinstance(layer, nn.Conv2d)  # `obstacles` lets nothing else pass
    return SparseConv2d.from_dense(layer, mask)


def _replaced(net: nn.Module, made: Mapping[nn.Module, nn.Module]) -> nn.Module:
    """Return `net` with each layer replaced by what was made of it, wherever it is held."""
    for module in list(net.modules()):
        for name, child in list(module._modules.items()):
            if child is not None and child in made:
                module._modules[name] = made[child]
    return made.get(net, net)


def _call_layers(net: nn.Module, made: Mapping[nn.Module, nn.Module]) -> None:
    """Turn off fast paths that would read packed weights as matrices: their modules call their layers."""
    for module in net.modules():
        for kind, (name, value) in FAST_PATHS.items():
            if isinstance(module, kind) and any(below in made for below in module.modules()):
                module.__dict__.setdefault(_BEFORE, {})[name] = getattr(module, name, value)
                setattr(module, name, value)
