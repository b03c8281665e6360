"""Why a weight cannot be sparse: decided here for `sparsify`, `compress`, `masks` and `report` alike.

A layer is replaced only if nothing is lost: its forward is torch's, no other module holds its tensors, and
only the layer itself reads them. Everything else stays dense, with a reason in words.
"""

from collections.abc import Mapping

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.nn.utils.parametrize import is_parametrized

from sparse_engine.nn.conv import SparseConv2d

# Modules whose forward reads the weights of the layers below them as matrices, instead of calling the layers.
READERS: tuple[type[nn.Module], ...] = (nn.MultiheadAttention,)

# Modules that have a faster forward for evaluation, which reads the weights of the layers below: the
# attribute and the value that keep them to the forward that calls the layers.
FAST_PATHS: dict[type[nn.Module], tuple[str, object]] = {
    nn.TransformerEncoderLayer: ("activation_relu_or_gelu", 0),
    nn.TransformerEncoder: ("use_nested_tensor", False),
}


def obstacles(net: nn.Module) -> dict[str, str | None]:
    """Return {path of a Conv2d or Linear: why it cannot be sparse, None if it can}, in module order."""
    read = {
        id(below): f"nn.{type(module).__name__} {path!r} reads its weight as a matrix"
        for path, module in net.named_modules()
        if isinstance(module, READERS)
        for below in module.modules()
    }
    shared = sharing(net)
    return {
        path: read.get(id(module)) or _obstacle(module) or _shared(path, module, shared)
        for path, module in net.named_modules()
        if isinstance(module, nn.Conv2d | nn.Linear)
    }


def sharing(net: nn.Module) -> dict[int, list[str]]:
    """Return {id of a parameter: its names} for the parameters that several modules of `net` hold."""
    names: dict[int, list[str]] = {}
    for path, module in net.named_modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                names.setdefault(id(parameter), []).append(f"{path}.{name}" if path else name)
    return {key: found for key, found in names.items() if len(found) > 1}


def computed_from(module: nn.Module) -> str | None:
    """Return what recomputes a layer's weight before each use (weight_norm, prune, ...), or None."""
    if is_parametrized(module):
        lists = module.get_submodule("parametrizations").children()
        kinds = [type(one).__name__.lstrip("_") for found in lists for one in found.children()]
        return ", ".join(dict.fromkeys(kinds))
    if module._parameters.get("weight") is None:
        return ", ".join(module._parameters) or "nothing that is a parameter"
    return None


def lazy_layers(net: nn.Module) -> list[str]:
    """Return the paths of the modules that do not know their shapes yet."""
    return [path for path, m in net.named_modules() if any(is_lazy(p) for p in m._parameters.values())]


def _obstacle(layer: nn.Conv2d | nn.Linear) -> str | None:
    plain = nn.Conv2d if isinstance(layer, nn.Conv2d) else nn.Linear
    source = computed_from(layer)
    if source:
        return f"its weight is computed ({source})"
    if is_lazy(layer.weight):
        return "its shape is not known before a first batch"
    if layer.weight.dtype != torch.float32:
        return f"weight is {layer.weight.dtype}"
    methods = ("forward", "_conv_forward") if plain is nn.Conv2d else ("forward",)
    if any(
        name in layer.__dict__ or getattr(type(layer), name) is not getattr(plain, name) for name in methods
    ):
        return f"{type(layer).__name__} has a forward of its own"
    if {*layer._parameters} - {"weight", "bias"} or layer._buffers or layer._modules:
        return "it has tensors of its own beside weight and bias"
    if not layer.weight.numel():
        return "its weight has no entries"
    return SparseConv2d.obstacle(layer) if isinstance(layer, nn.Conv2d) else None


def _shared(path: str, layer: nn.Module, shared: Mapping[int, list[str]]) -> str | None:
    for name, parameter in layer._parameters.items():
        own = f"{path}.{name}" if path else name
        others = [other for other in shared.get(id(parameter), ()) if other != own]
        if others:
            return f"its {name} is shared with {', '.join(others)}"
    return None
