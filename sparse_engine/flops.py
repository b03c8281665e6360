"""What a sample costs in floating-point operations, from the pattern, exactly.

    forward = sum over convolutions and linear layers of  2 MAC + bias adds
    MAC     = stored entries of the weight * output positions             step = 3 forward

A step is the forward pass, the input gradient and the weight gradient on the mask. Padding is multiplied like
everything else, as the dense figure has it. Norms, activations and pools are not counted, nor is what a
network computes outside its convolutions and linear layers.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.parameter import is_lazy

from sparse_engine import modules
from sparse_engine.pattern import Pattern

Kind = Literal["conv", "conv_transposed", "linear"]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class LayerFlops:
    """One layer, all its calls together. `name` is its weight's, as in masks."""

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
    net: nn.Module, input_shape: Sequence[int], masks: Mapping[str, Tensor] | None = None
) -> Flops:
    """The cost of one sample of `input_shape`, which is (channels, height, width) or (features,).

    `masks`: {weight's name: bool tensor}; a weight without one counts whole. None: what `net` stores itself.
    Runs a sample of zeros through `net`, in evaluation mode and without gradients, and leaves it as it was.
    """
    shape = _checked(net, input_shape)
    layers = _layers(net)
    entries = _entries(layers, masks)
    rows: dict[str, LayerFlops] = {}

    def record(name: str, module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        size = layers[name].shape
        kind = _kind(module, size)
        # one sample: what is not channels (dim 0 of the weight) is positions
        positions = (inputs[0] if kind == "conv_transposed" else output).numel() // max(size[0], 1)
        before = rows.get(name, LayerFlops(name, kind, 0, 0, 0, ()))
        rows[name] = LayerFlops(
            name,
            kind,
            before.dense_macs + prod(size) * positions,
            before.sparse_macs + entries[name] * positions,
            before.bias_adds + (output.numel() if getattr(module, "bias", None) is not None else 0),
            tuple(output.shape[1:]),
        )

    hooks = [layer.module.register_forward_hook(partial(record, name)) for name, layer in layers.items()]
    try:
        _run(net, shape)
    finally:
        for hook in hooks:
            hook.remove()
    dense = sum(2 * row.dense_macs + row.bias_adds for row in rows.values())
    sparse = sum(2 * row.sparse_macs + row.bias_adds for row in rows.values())
    return Flops(dense, sparse, 3 * dense, 3 * sparse, tuple(rows.values()))


def training_flops(
    net: nn.Module,
    input_shape: Sequence[int],
    samples: int,
    epochs: int,
    growth_batch: int = 128,
    masks: Mapping[str, Tensor] | None = None,
) -> int:
    """A client's round: `epochs` over `samples`, and one dense batch whose gradient decides what grows."""
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
    module: nn.Module
    shape: Shape  # of the weight, as in the dense network
    entries: int  # stored


def _layers(net: nn.Module) -> dict[str, _Layer]:
    """By the weight's name: what `se.masks` knows, other layers with a pattern (exempt ones), torch's own."""
    stored = modules.masks(net)
    found = {}
    for path, module in net.named_modules():
        name = f"{path}.weight" if path else "weight"
        pattern = getattr(module, "pattern", None)
        if name in stored and not stored[name].is_meta:
            found[name] = _Layer(module, tuple(stored[name].shape), int(stored[name].count_nonzero()))
        elif isinstance(pattern, Pattern):
            found[name] = _Layer(module, tuple(pattern.shape), pattern.nnz)
        elif isinstance(module, _ConvNd | nn.Linear):
            found[name] = _Layer(module, tuple(module.weight.shape), module.weight.numel())
    return found


def _kind(module: nn.Module, shape: Shape) -> Kind:
    if isinstance(module, _ConvTransposeNd):
        return "conv_transposed"
    return "linear" if len(shape) == 2 else "conv"


def _entries(layers: Mapping[str, _Layer], masks: Mapping[str, Tensor] | None) -> dict[str, int]:
    """How many entries of every weight count."""
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


def _checked(net: nn.Module, input_shape: Sequence[int]) -> Shape:
    shape = tuple(input_shape)
    if not shape or min(shape) < 1:
        raise ValueError(f"expected the shape of one sample, such as (3, 32, 32) or (64,), got {shape}")
    lazy = [name for name, x in net.named_parameters() if is_lazy(x)]
    if lazy:  # a forward pass would change the network
        raise ValueError(f"expected a network that knows its shapes, got lazy parameters {lazy}")
    return shape


@torch.no_grad()
def _run(net: nn.Module, shape: Shape) -> None:
    like = next((x for x in net.parameters() if x.is_floating_point()), torch.empty(0))
    with _evaluation(net):
        try:
            net(torch.zeros(1, *shape, dtype=like.dtype, device=like.device))
        except RuntimeError as error:
            raise ValueError(
                f"expected a sample that the network takes, got shape {shape}: {error}"
            ) from error


@contextmanager
def _evaluation(net: nn.Module) -> Iterator[None]:
    """Evaluation mode, each module's own mode restored after."""
    modes = [(module, module.training) for module in net.modules()]
    try:
        for module, _ in modes:
            module.training = False
        yield
    finally:
        for module, mode in modes:
            module.training = mode
