"""nn.Module <-> Model: which weights are prunable, compressing a network, writing a model back into one.

Prunable are the weights of Conv2d and Linear that can be sparse (sparse_engine/nn/obstacles.py has the
reasons why one cannot). Everything else goes whole to `rest` or `integers`. Half-precision tensors are
widened there, which is exact, and narrowed again by `load`; float64 and complex ones would lose something and
are refused. So are tied tensors: one weight under two names would have two masks.
"""

import copy
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from sparse_engine.model.model import Entry, Layout, Model
from sparse_engine.model.pattern import Pattern
from sparse_engine.model.tensor import SparseTensor
from sparse_engine.nn.layer import SparseLayer
from sparse_engine.nn.obstacles import obstacles
from sparsefl.kernels import bitmap as bitmaps

EXEMPT = ("*shortcut*",)  # ResNet's 1x1 shortcuts stay dense, as in the authors' code (algorithms.md 1)

Prunable = nn.Conv2d | nn.Linear | SparseLayer  # modules whose weight pruning may touch


def prunable(net: nn.Module, exempt: str | Iterable[str] = EXEMPT) -> dict[str, Tensor]:
    """Return {name: weight} of what pruning may touch, in module order.

    exempt  names or glob patterns of weights to leave out

    Dense weights have their shape; those of sparse layers, which are never exempt, are packed values.
    """
    return {name: module.weight for name, module in _prunable(net, exempt).items()}


@torch.no_grad()
def compress(
    net: nn.Module, masks: Mapping[str, Tensor] | None = None, exempt: str | Iterable[str] = EXEMPT
) -> Model:
    """Return the weights and buffers of `net` as a Model, in memory of its own.

    net     a network, sparse or dense
    masks   {weight's name: bool tensor in its shape} for dense weights; one without a mask is stored whole,
            entries outside a mask are dropped. Sparse layers bring their own pattern
    exempt  names or glob patterns of weights that are no subject of pruning: stored whole beside the others

    >>> import torch, sparse_engine as se
    >>> net = torch.nn.Linear(20, 50)
    >>> se.compress(net).bitmap.nnz, se.compress(net, {"weight": net.weight > 0}).density < 1
    (1000, True)
    """
    modules = _prunable(net, exempt)
    _check_masks(masks or {}, modules)
    parts = {name: _sparse(module, (masks or {}).get(name)) for name, module in modules.items()}
    others = {name: x for name, x in _tensors(net).items() if name not in parts}
    layout = _shared(
        Layout(
            tuple(parts),
            tuple(part.shape for part in parts.values()),
            tuple(Entry(name, tuple(x.shape), x.dtype) for name, x in others.items()),
        )
    )
    device = next((x.device for x in net.parameters()), torch.device("cpu"))
    words = _joined([part.pattern.bitmap.words for part in parts.values()], torch.int64, device)
    return Model(
        layout,
        bitmaps.make(words, layout.segments),
        _joined([part.values for part in parts.values()], torch.float32, device),
        _joined([others[entry.name] for entry in layout.floats], torch.float32, device),
        _joined([others[entry.name] for entry in layout.integers], torch.int64, device),
    )


@torch.no_grad()
def load(net: nn.Module, state: Model | Mapping[str, Any]) -> nn.Module:
    """Write `state` into `net` and return `net`.

    net    a network of the same layout: sparse layers take pattern and values, dense weights get zeros where
           nothing is stored
    state  a Model, or the `state_dict()` of a sparse or dense network: a dense network takes both

    If `state` does not fit, a ValueError lists the differences and `net` is unchanged.

    >>> import torch, sparse_engine as se
    >>> sparse = se.sparsify(torch.nn.Linear(20, 50), density=0.1)
    >>> se.load(torch.nn.Linear(20, 50), sparse.state_dict()).weight.count_nonzero()
    tensor(100)
    """
    if not isinstance(state, Model):
        return _load_state_dict(net, state)
    tensors = _tensors(net)
    layers = _sparse_layers(net)
    layout = state.layout
    wanted = {n: (s, torch.float32) for n, s in zip(layout.names, layout.shapes, strict=True)}
    wanted |= {entry.name: (entry.shape, entry.dtype) for entry in layout.rest}
    present = {name: (tuple(x.shape), x.dtype) for name, x in tensors.items()}
    present |= {name: (layer.pattern.shape, layer.weight.dtype) for name, layer in layers.items()}
    wrong = {
        name: f"{wanted.get(name, 'none')} in the state, {present.get(name, 'none')} in the network"
        for name in dict.fromkeys([*wanted, *present])
        if wanted.get(name) != present.get(name) or (name in layers and name not in layout.names)
    }
    if wrong:
        raise ValueError(f"expected a state of this network, got {wrong}")
    for name in layout.names:
        if name in layers:
            layers[name].set_tensor(state.tensor(name))
        else:
            tensors[name].copy_(state.tensor(name).to_dense())
    for name, x in state.rest_tensors().items():
        tensors[name].copy_(x)
    return net


def masks(net_or_state: nn.Module | Model, exempt: str | Iterable[str] = EXEMPT) -> dict[str, Tensor]:
    """Return {weight's name: bool tensor in its shape}, true where an entry is stored.

    net_or_state  a network, whose dense weights are all true, or a Model
    exempt        names or glob patterns of a network's dense weights to leave out

    >>> import torch, sparse_engine as se
    >>> se.masks(se.sparsify(torch.nn.Linear(20, 50), density=0.1))["weight"].sum()
    tensor(100)
    """
    if isinstance(net_or_state, Model):
        layout, stored = net_or_state.layout, bitmaps.to_mask(net_or_state.bitmap)
        parts = stored.split(layout.segments.sizes) if layout.names else ()
        return {n: m.view(s) for n, s, m in zip(layout.names, layout.shapes, parts, strict=True)}
    return {
        name: module.pattern.mask()
        if isinstance(module, SparseLayer)
        else torch.ones_like(module.weight, dtype=torch.bool)
        for name, module in _prunable(net_or_state, exempt).items()
    }


def _prunable(net: nn.Module, exempt: str | Iterable[str]) -> dict[str, Prunable]:
    exempt = [exempt] if isinstance(exempt, str) else list(exempt)
    why = obstacles(net)
    found: dict[str, Prunable] = {
        f"{path}.weight" if path else "weight": module
        for path, module in net.named_modules()
        if isinstance(module, SparseLayer)
        or (isinstance(module, nn.Conv2d | nn.Linear) and why[path] is None)
    }
    known = {name for name, _ in net.named_parameters(remove_duplicate=False)}  # dense anyway is no mistake
    unknown = [name for name in exempt if name not in known and not set(name) & set("*?[")]
    if unknown:
        raise ValueError(f"expected exempt weights out of {list(found)}, or glob patterns, got {unknown}")
    return {
        name: module
        for name, module in found.items()
        if isinstance(module, SparseLayer) or not any(fnmatchcase(name, glob) for glob in exempt)
    }


def _sparse(module: Prunable, mask: Tensor | None) -> SparseTensor:
    if isinstance(module, SparseLayer):
        return module.tensor()
    w = module.weight
    if mask is None:
        return SparseTensor.from_dense(w, Pattern(tuple(w.shape), bitmaps.full((w.numel(),), w.device)))
    return SparseTensor.from_dense(w, mask.to(w.device))


def _sparse_layers(net: nn.Module) -> dict[str, SparseLayer]:
    named = net.named_modules()
    return {f"{path}.weight" if path else "weight": m for path, m in named if isinstance(m, SparseLayer)}


def _tensors(net: nn.Module) -> dict[str, Tensor]:
    """Return the parameters and persistent buffers of `net` by name, without sparse weights; no copies."""
    sparse = _sparse_layers(net)
    hidden = {*sparse, *(name.removesuffix("weight") + "bitmap" for name in sparse)}
    everything = net.state_dict(keep_vars=True)
    found = {name: x for name, x in everything.items() if name not in hidden}
    strange = [name for name, x in found.items() if not isinstance(x, Tensor)]
    if strange:
        raise ValueError(f"expected a network of tensors, got extra state {strange}")
    first: dict[int, str] = {}
    tied = {name: first[id(x)] for name, x in everything.items() if first.setdefault(id(x), name) != name}
    if tied:
        raise ValueError(f"expected every tensor under one name, got tied ones {tied}")
    return found


def _load_state_dict(net: nn.Module, state_dict: Mapping[str, Any]) -> nn.Module:
    try:
        unpacked = _unpacked(net, state_dict)
        copy.deepcopy(net).load_state_dict(unpacked)  # torch would have written a part when it refuses
    except (RuntimeError, ValueError) as error:
        raise ValueError(f"expected a state dict of this network, got another: {error}") from error
    net.load_state_dict(unpacked)
    return net


def _unpacked(net: nn.Module, state_dict: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state dict in which the weights that are dense in `net` are dense."""
    result, own = dict(state_dict), net.state_dict(keep_vars=True)
    for name, words in state_dict.items():
        weight = name.removesuffix("bitmap") + "weight"
        if name.endswith("bitmap") and name not in own and weight in own and weight in state_dict:
            like = own[weight]
            pattern = Pattern(tuple(like.shape), bitmaps.make(words.clone(), (like.numel(),)))
            del result[name]
            result[weight] = SparseTensor(pattern, state_dict[weight]).to_dense()
    return result


def _check_masks(masks: Mapping[str, Tensor], modules: Mapping[str, Prunable]) -> None:
    unknown = [name for name in masks if name not in modules]
    if unknown:
        raise ValueError(f"expected masks of prunable weights {list(modules)}, got {unknown}")
    sparse = [name for name in masks if isinstance(modules[name], SparseLayer)]
    if sparse:
        raise ValueError(
            f"expected masks of dense weights, got some of layers that are sparse already: {sparse}"
        )
    shapes = {name: tuple(modules[name].weight.shape) for name in masks}
    wrong = {
        name: (m.dtype, tuple(m.shape), f"wanted {shapes[name]}")
        for name, m in masks.items()
        if m.dtype != torch.bool or tuple(m.shape) != shapes[name]
    }
    if wrong:
        raise ValueError(f"expected bool masks in the weights' shapes, got {wrong}")


@lru_cache(maxsize=64)
def _shared(layout: Layout) -> Layout:
    """Return one object for equal layouts: a thousand clients of one network hold its names once."""
    return layout


def _joined(tensors: list[Tensor], dtype: torch.dtype, device: torch.device) -> Tensor:
    parts = [x.reshape(-1).to(device, dtype) for x in tensors]
    return torch.cat(parts) if parts else torch.empty(0, dtype=dtype, device=device)
