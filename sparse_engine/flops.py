"""The floating-point operations that one sample costs, counted exactly from the pattern.

    forward = sum over layers with weights of  2 MAC + bias adds
    MAC     = stored entries of the weight * positions where it is used     step = 3 forward

A step is the forward pass, the input gradient and the weight gradient on the mask. Padding is multiplied like
everything else, as the dense figure has it. Layers are convolutions, linear, bilinear and recurrent ones, and
the projections of nn.MultiheadAttention. Norms, activations and pools are not counted, nor products of
activations (attention scores), nor what a network computes with parameters of its own.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from math import prod
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.parameter import is_lazy
from torch.nn.utils.rnn import PackedSequence

from sparse_engine.model.pattern import Pattern
from sparse_engine.nn import bridge

Kind = Literal["conv", "conv_transposed", "linear", "bilinear", "recurrent", "attention"]
Shape = tuple[int, ...]
Recurrent = nn.RNNBase | nn.RNNCellBase


@dataclass(frozen=True)
class LayerFlops:
    """One weight, all its uses together. `name` is the weight's, as in masks."""

    name: str
    kind: Kind
    dense_macs: int
    sparse_macs: int
    bias_adds: int
    output_size: Shape  # of one sample, in the last call


@dataclass(frozen=True)
class Flops:
    """Operations per sample; `layers` in the order in which they ran."""

    dense_forward: int
    sparse_forward: int
    dense_step: int
    sparse_step: int
    layers: tuple[LayerFlops, ...]


def count_flops(
    net: nn.Module,
    input_shape: Sequence[int] | None = None,
    masks: Mapping[str, Tensor] | None = None,
    *,
    sample: Any = None,
) -> Flops:
    """Return the operations that one sample costs.

    net          a network, sparse or dense; unchanged afterwards
    input_shape  of one sample: (channels, height, width) or (features,); zeros of it run through `net`
    masks        {weight's name: bool tensor}; a weight without one counts whole. None: what `net` stores
    sample       instead of a shape, for token ids or several inputs: what `net` takes, with a batch of one,
                 a tensor or a tuple of arguments

    The sample runs through `net` once, in evaluation mode and without gradients.

    >>> import torch, sparse_engine as se
    >>> se.count_flops(torch.nn.Linear(20, 50), (20,)).dense_forward  # 2 * 20 * 50, and 50 biases
    2050
    """
    given = _arguments(net, input_shape, sample)
    layers = _layers(net)
    entries = _entries(layers, masks)
    rows: dict[str, LayerFlops] = {}

    def record(path: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict, output: Any) -> None:
        for use in _uses(path, module, layers, args, kwargs, output):
            before = rows.get(use.name, LayerFlops(use.name, use.kind, 0, 0, 0, ()))
            rows[use.name] = LayerFlops(
                use.name,
                use.kind,
                before.dense_macs + int(prod(layers[use.name].shape) * use.positions),
                before.sparse_macs + int(entries[use.name] * use.positions),
                before.bias_adds + use.bias_adds,
                use.output_size,
            )

    bridge = {id(layer.module): layer for layer in layers.values()}.values()
    hooks = [
        layer.module.register_forward_hook(partial(record, layer.path), with_kwargs=True) for layer in bridge
    ]
    try:
        _run(net, given)
    finally:
        for hook in hooks:
            hook.remove()
    dense = sum(2 * row.dense_macs + row.bias_adds for row in rows.values())
    sparse = sum(2 * row.sparse_macs + row.bias_adds for row in rows.values())
    return Flops(dense, sparse, 3 * dense, 3 * sparse, tuple(rows.values()))


def is_counted(module: nn.Module) -> bool:
    """Return whether `count_flops` knows what this layer does with its weights (a look-up costs nothing)."""
    known = (
        _ConvNd | nn.Linear | nn.Bilinear | Recurrent | nn.MultiheadAttention | nn.Embedding | nn.EmbeddingBag
    )
    return isinstance(module, known) or isinstance(getattr(module, "pattern", None), Pattern)


def training_flops(
    net: nn.Module,
    input_shape: Sequence[int],
    samples: int,
    epochs: int,
    growth_batch: int = 128,
    masks: Mapping[str, Tensor] | None = None,
) -> int:
    """Return the operations of one client's round: local training, then one dense batch that decides growth.

    net           a network, sparse or dense
    input_shape   of one sample, as in `se.count_flops`
    samples       training samples of the client
    epochs        passes over them
    growth_batch  samples of the batch whose dense gradient decides what grows; 0: none
    masks         {weight's name: bool tensor}; None: what `net` stores

    >>> import torch, sparse_engine as se
    >>> se.training_flops(torch.nn.Linear(20, 50), (20,), samples=100, epochs=5, growth_batch=0)
    3075000
    """
    negative = {
        name: n
        for name, n in {"samples": samples, "epochs": epochs, "growth_batch": growth_batch}.items()
        if n < 0
    }
    if negative:
        raise ValueError(f"expected no negative number, got {negative}")
    flops = count_flops(net, input_shape, masks)
    return epochs * samples * flops.sparse_step + growth_batch * flops.dense_step


class _Layer(NamedTuple):
    path: str
    module: nn.Module
    shape: Shape  # of the weight, as in the dense network
    entries: int  # stored


class _Use(NamedTuple):
    """One weight in one call."""

    name: str
    kind: Kind
    positions: int | Fraction  # a fraction where parts of the weight meet different numbers of them
    bias_adds: int
    output_size: Shape


def _layers(net: nn.Module) -> dict[str, _Layer]:
    """Return layers by their weight's name: those of `se.masks`, exempt ones with a pattern, torch's own."""
    stored = bridge.masks(net)
    found = {}
    for path, module in net.named_modules():
        name = _join(path, "weight")
        pattern = getattr(module, "pattern", None)
        if name in stored and not stored[name].is_meta:
            shape = tuple(stored[name].shape)
            found[name] = _Layer(path, module, shape, int(stored[name].count_nonzero()))
        elif isinstance(pattern, Pattern):
            found[name] = _Layer(path, module, tuple(pattern.shape), pattern.nnz)
        elif isinstance(module, _ConvNd | nn.Linear):
            found[name] = _Layer(path, module, tuple(module.weight.shape), module.weight.numel())
        elif isinstance(module, nn.Bilinear | Recurrent | nn.MultiheadAttention):
            for own, w in module._parameters.items():
                if w is not None and w.dim() > 1:
                    found[_join(path, own)] = _Layer(path, module, tuple(w.shape), w.numel())
    return found


def _uses(
    path: str,
    module: nn.Module,
    layers: Mapping[str, _Layer],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    output: Any,
) -> Iterator[_Use]:
    """Yield what one call does with a layer's weights. For one sample, all but channels are positions."""
    given = [*args, *kwargs.values()]
    if isinstance(module, nn.MultiheadAttention):
        yield from _attention_uses(path, module, args, kwargs, tuple(output[0].shape[1:]))
        return
    if isinstance(module, Recurrent):
        x = given[0].data if isinstance(given[0], PackedSequence) else given[0]
        y = output[0] if isinstance(output, tuple) else output
        size = tuple(y.data.shape[1:] if isinstance(y, PackedSequence) else y.shape[1:])
        steps = x.numel() // max(module.input_size, 1)
        for name, w in module._parameters.items():
            if w is not None and w.dim() > 1:
                bias = module._parameters.get(name.replace("weight", "bias", 1))
                adds = 0 if bias is None else bias.numel() * steps
                yield _Use(_join(path, name), "recurrent", steps, adds, size)
        return
    name = _join(path, "weight")
    shape = layers[name].shape
    kind = _kind(module, shape)
    positions = (given[0] if kind == "conv_transposed" else output).numel() // max(shape[0], 1)
    adds = output.numel() if getattr(module, "bias", None) is not None else 0
    yield _Use(name, kind, positions, adds, tuple(output.shape[1:]))


def _attention_uses(
    path: str, module: nn.MultiheadAttention, args: tuple[Any, ...], kwargs: Mapping[str, Any], size: Shape
) -> Iterator[_Use]:
    """Yield the projections of query, key and value, and that of the result."""
    named = dict(zip(("query", "key", "value"), args, strict=False)) | dict(kwargs)
    width = max(module.embed_dim, 1)
    query, key, value = (named[n].numel() // max(named[n].shape[-1], 1) for n in ("query", "key", "value"))
    total = query + key + value
    adds = 0 if module.in_proj_bias is None else width * total
    if module.in_proj_weight is not None:
        yield _Use(_join(path, "in_proj_weight"), "attention", Fraction(total, 3), adds, size)
    else:
        for name, positions in {"q": query, "k": key, "v": value}.items():
            part = adds * positions // max(total, 1)
            yield _Use(_join(path, f"{name}_proj_weight"), "attention", positions, part, size)
    out = 0 if module.out_proj.bias is None else width * query
    yield _Use(_join(path, "out_proj.weight"), "attention", query, out, size)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _kind(module: nn.Module, shape: Shape) -> Kind:
    if isinstance(module, _ConvTransposeNd):
        return "conv_transposed"
    if isinstance(module, nn.Bilinear):
        return "bilinear"
    return "linear" if len(shape) == 2 else "conv"


def _entries(layers: Mapping[str, _Layer], masks: Mapping[str, Tensor] | None) -> dict[str, int]:
    """Return the number of entries that count, by weight."""
    if masks is None:
        return {name: layer.entries for name, layer in layers.items()}
    unknown = [name for name in masks if name not in layers]
    if unknown:
        raise ValueError(f"expected masks of weights out of {list(layers)}, got {unknown}")
    wrong = {
        name: (m.dtype, tuple(m.shape), f"wanted {layers[name].shape}")
        for name, m in masks.items()
        if m.dtype != torch.bool or tuple(m.shape) != layers[name].shape
    }
    if wrong:
        raise ValueError(f"expected bool masks in the weights' shapes, got {wrong}")
    whole = {name: prod(layer.shape) for name, layer in layers.items()}
    return whole | {name: int(m.count_nonzero()) for name, m in masks.items()}


def _arguments(net: nn.Module, input_shape: Sequence[int] | None, sample: Any) -> tuple[Any, ...]:
    """Return the arguments that `net` is called with."""
    lazy = [name for name, x in net.named_parameters() if is_lazy(x)]
    if lazy:  # a forward pass would change the network
        raise ValueError(f"expected a network that knows its shapes, got lazy parameters {lazy}")
    if (input_shape is None) == (sample is None):
        raise ValueError(
            "expected either an input_shape or a sample, got " + ("neither" if sample is None else "both")
        )
    if input_shape is None:
        return sample if isinstance(sample, tuple) else (sample,)
    shape = tuple(input_shape)
    if not shape or min(shape) < 1:
        raise ValueError(f"expected the shape of one sample, such as (3, 32, 32) or (64,), got {shape}")
    like = next((x for x in net.parameters() if x.is_floating_point()), torch.empty(0))
    return (torch.zeros(1, *shape, dtype=like.dtype, device=like.device),)


@torch.no_grad()
def _run(net: nn.Module, given: tuple[Any, ...]) -> None:
    with _evaluation(net):
        try:
            net(*given)
        except RuntimeError as error:
            shapes = ", ".join(f"{tuple(x.shape[1:])}" for x in given if isinstance(x, Tensor))
            raise ValueError(
                f"expected a sample that the network takes, got shape {shapes}: {error} "
                "(input_shape gives float zeros; give other inputs as `sample`)"
            ) from error


@contextmanager
def _evaluation(net: nn.Module) -> Iterator[None]:
    """A context in evaluation mode; each module gets its own mode back."""
    modes = [(module, module.training) for module in net.modules()]
    try:
        for module, _ in modes:
            module.training = False
        yield
    finally:
        for module, mode in modes:
            module.training = mode
