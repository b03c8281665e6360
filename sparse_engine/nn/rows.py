"""One row per layer or parameter of a network that holds weights: sparse or not, and why.

Weights are tensors of two or more dimensions. Biases, norms and other vectors have no rows; a report counts
them in its totals. A tensor that two layers share counts once, at its first name.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils.parametrize import ParametrizationList, is_parametrized

from sparse_engine.nn.layer import SparseLayer
from sparse_engine.nn.obstacles import obstacles, sharing
from sparse_engine.nn.wrapped import Wrapped


class Row(NamedTuple):
    """A layer, or a parameter of the user's own module. `flops`: of one sample forward, as (dense, now)."""

    name: str
    kind: str  # "sparse"; "dense": could be sparse; "torch": cannot be
    density: float
    why: str
    module: str
    weights: int  # entries of the dense weight
    stored: int
    flops: tuple[int, int] | None = None  # None: not counted


def weight_rows(net: nn.Module) -> Iterator[Row]:
    """Yield the rows, in the order of modules; FLOP are not counted."""
    reasons, shared = obstacles(net), sharing(net)
    idle = "exempt" if any(isinstance(m, SparseLayer) for m in net.modules()) else "not made sparse"
    for path, module in net.named_modules():
        kind = (module.own_class if isinstance(module, Wrapped) else type(module)).__name__
        if isinstance(module, SparseLayer):
            pattern = module.pattern
            why = "" if pattern.nnz else "stores nothing: its output is its bias alone"
            yield Row(path, "sparse", pattern.density, why, kind, pattern.numel, pattern.nnz)
            continue
        found = _weights(path, module)
        quantised = _quantised(module)
        if quantised:
            yield Row(path, "torch", 1.0, "its weight is quantised", kind, quantised, quantised)
        if not found:
            continue
        counted = {n: w for n, w in found.items() if shared.get(id(w), [n])[0] == n}
        if path in reasons:
            cannot = reasons[path]
            row = Row(path, "torch" if cannot else "dense", 1.0, cannot or idle, kind, 0, 0)
            yield _sized(row, counted)
        elif _is_layer(module):
            yield _sized(Row(path, "torch", 1.0, _reason(found, kind, shared), kind, 0, 0), counted)
        else:
            for name, w in found.items():
                why = _reason({name: w}, kind, shared, f"a parameter of {kind} itself")
                one = {name: w} if name in counted else {}
                yield _sized(Row(name, "torch", 1.0, why, kind, 0, 0), one)


def _weights(path: str, module: nn.Module) -> dict[str, Tensor]:
    """Return {name: tensor} of a module's own weights, those behind a parametrization too."""
    if isinstance(module, ParametrizationList):
        return {}  # its owner's
    within = f"{path}." if path else ""
    found = {within + name: p for name, p in module._parameters.items() if p is not None}
    if is_parametrized(module):
        behind = f"{within}parametrizations"
        found |= dict(module.get_submodule("parametrizations").named_parameters(behind))
    return {name: p for name, p in found.items() if is_lazy(p) or p.dim() > 1}


def _quantised(module: nn.Module) -> int:
    """Return the number of entries of a quantised weight, which a method returns; 0 if there is none."""
    weight = getattr(module, "weight", None)
    found = weight() if callable(weight) and not isinstance(weight, Tensor | nn.Module) else None
    return found.numel() if isinstance(found, Tensor) and found.is_quantized else 0


def _is_layer(module: nn.Module) -> bool:
    """Return whether this is a layer of torch, or derived from one. Containers are none."""
    own = [c for c in type(module).__mro__ if c.__module__.startswith("torch.") and c is not nn.Module]
    return any(issubclass(c, nn.Module) and c.__module__ != "torch.nn.modules.container" for c in own)


def _reason(
    found: Mapping[str, Tensor], kind: str, shared: Mapping[int, list[str]], otherwise: str | None = None
) -> str:
    why = otherwise or f"no sparse kernel for {kind}"
    others = [n for name, w in found.items() for n in shared.get(id(w), ()) if n != name]
    return why + (f"; shared with {', '.join(others)}" if others else "")


def _sized(row: Row, weights: Mapping[str, Tensor]) -> Row:
    n = sum(0 if is_lazy(w) else w.numel() for w in weights.values())
    return row._replace(weights=n, stored=n)
