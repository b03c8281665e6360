"""nn.Module <-> State: which weights are prunable, compressing a network, writing a state back into one.

Prunable are the weights of Conv2d (ungrouped) and Linear in float32. Everything else goes whole to `rest` or
`integers`. Half-precision tensors are widened there, which is exact, and narrowed again by `load`; float64
and complex ones would lose something and are refused. So are tied tensors: with one weight under two names,
which of the two masks holds would be anybody's guess.
"""

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from functools import lru_cache

import torch
from torch import Tensor, nn

from kernels import bitmap as bitmaps
from kernels.layout import Bitmap
from kernels.pack import pack
from sparse_engine.state import Entry, Layout, State

EXEMPT = ("*shortcut*",)  # ResNet's 1x1 shortcuts stay dense, as in the authors' code (SPEC.md 1)


def prunable(net: nn.Module, exempt: str | Iterable[str] = EXEMPT) -> dict[str, Tensor]:
    """Weights that pruning may touch, in module order; `exempt`: names or glob patterns to leave out."""
    exempt = [exempt] if isinstance(exempt, str) else list(exempt)
    found = {
        f"{path}.weight" if path else "weight": module.weight
        for path, module in net.named_modules()
        if isinstance(module, nn.Conv2d | nn.Linear)
        and isinstance(module._parameters.get("weight"), nn.Parameter)
        and module.weight.dtype == torch.float32
        and getattr(module, "groups", 1) == 1
    }
    unknown = [name for name in exempt if name not in found and not set(name) & set("*?[")]
    if unknown:
        raise ValueError(f"expected exempt weights out of {list(found)}, or glob patterns, got {unknown}")
    return {name: w for name, w in found.items() if not any(fnmatchcase(name, glob) for glob in exempt)}


@torch.no_grad()
def compress(
    net: nn.Module, masks: Mapping[str, Tensor] | None = None, exempt: str | Iterable[str] = EXEMPT
) -> State:
    """The at-rest form of `net`, in memory of its own.

    `masks`: bool tensors in the weights' shapes; a weight without one is stored whole. What `net` holds
    outside a mask is dropped.
    """
    tensors = _tensors(net)
    weights = prunable(net, exempt)
    others = {name: x for name, x in tensors.items() if name not in weights}
    layout = _shared(
        Layout(
            tuple(weights),
            tuple(tuple(w.shape) for w in weights.values()),
            tuple(Entry(name, tuple(x.shape), x.dtype) for name, x in others.items()),
        )
    )
    device = next(iter(tensors.values())).device if tensors else torch.device("cpu")
    bitmap = _bitmap_of(masks or {}, layout, device)
    values = torch.empty(bitmap.nnz, device=device)
    for i, (w, part) in enumerate(zip(weights.values(), values.split(bitmap.counts.tolist()), strict=True)):
        pack(w.to(device).reshape(-1), bitmap.segment(i), out=part)
    return State(
        layout,
        bitmap,
        values,
        _joined([others[entry.name] for entry in layout.floats], torch.float32, device),
        _joined([others[entry.name] for entry in layout.integers], torch.int64, device),
    )


@torch.no_grad()
def load(net: nn.Module, state: State) -> nn.Module:
    """Write `state` into `net`, zeros where nothing is stored, and return it. A refusal changes nothing."""
    tensors = _tensors(net)
    layout = state.layout
    wanted = {n: (s, torch.float32) for n, s in zip(layout.names, layout.shapes, strict=True)}
    wanted |= {entry.name: (entry.shape, entry.dtype) for entry in layout.rest}
    present = {name: (tuple(x.shape), x.dtype) for name, x in tensors.items()}
    wrong = {
        name: f"{wanted.get(name, 'none')} in the state, {present.get(name, 'none')} in the network"
        for name in dict.fromkeys([*wanted, *present])
        if wanted.get(name) != present.get(name)
    }
    if wrong:
        raise ValueError(f"expected a state of this network, got {wrong}")
    for name in layout.names:
        tensors[name].copy_(state.tensor(name).to_dense())
    for name, x in state.rest_tensors().items():
        tensors[name].copy_(x)
    return net


def masks(net_or_state: nn.Module | State, exempt: str | Iterable[str] = EXEMPT) -> dict[str, Tensor]:
    """{name: bool tensor in the weight's shape}: what is stored. All true for an ordinary network."""
    if isinstance(net_or_state, State):
        layout, stored = net_or_state.layout, bitmaps.to_mask(net_or_state.bitmap)
        parts = stored.split(layout.segments.sizes) if layout.names else ()
        return {n: m.view(s) for n, s, m in zip(layout.names, layout.shapes, parts, strict=True)}
    return {name: torch.ones_like(w, dtype=torch.bool) for name, w in prunable(net_or_state, exempt).items()}


def _tensors(net: nn.Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers, the very tensors of `net`, each under one name."""
    found = net.state_dict(keep_vars=True)
    strange = [name for name, x in found.items() if not isinstance(x, Tensor)]
    if strange:
        raise ValueError(f"expected a network of tensors, got extra state {strange}")
    first: dict[int, str] = {}
    tied = {name: first[id(x)] for name, x in found.items() if first.setdefault(id(x), name) != name}
    if tied:
        raise ValueError(f"expected every tensor under one name, got tied ones {tied}")
    return found


def _bitmap_of(masks: Mapping[str, Tensor], layout: Layout, device: torch.device) -> Bitmap:
    unknown = [name for name in masks if name not in layout.names]
    if unknown:
        raise ValueError(f"expected masks of prunable weights {list(layout.names)}, got {unknown}")
    shapes = dict(zip(layout.names, layout.shapes, strict=True))
    wrong = {
        name: (m.dtype, tuple(m.shape), f"wanted {shapes[name]}")
        for name, m in masks.items()
        if m.dtype != torch.bool or tuple(m.shape) != shapes[name]
    }
    if wrong:
        raise ValueError(f"expected bool masks in the weights' shapes, got {wrong}")
    if not masks:
        return bitmaps.full(layout.segments, device)
    stored = torch.ones(layout.segments.numel, dtype=torch.bool, device=device)
    for name, part in zip(layout.names, stored.split(layout.segments.sizes), strict=True):
        if name in masks:
            part.copy_(masks[name].reshape(-1))
    return bitmaps.from_mask(stored, layout.segments)


@lru_cache(maxsize=64)
def _shared(layout: Layout) -> Layout:
    """Equal layouts become one object: a thousand clients of one network hold its names once."""
    return layout


def _joined(tensors: list[Tensor], dtype: torch.dtype, device: torch.device) -> Tensor:
    parts = [x.reshape(-1).to(device, dtype) for x in tensors]
    return torch.cat(parts) if parts else torch.empty(0, dtype=dtype, device=device)
