"""Layers of many clients in one launch: conv2d and linear on the patterns of a group, and their gradients.

    make             patterns -> Group, with the index that the passes follow
    forward          y, gate           = pool(relu(conv(x) + bias))          (kernels/group.py)
    input_gradient   the gradient of x = conv's transpose of dz, written through the gate of the layer before
    weight_gradient  the gradient of stored weights and biases, all layers at once: no atomics, sums repeat
    dense_gradient   that of all weights, stored or not: what growth looks at

A client's own arithmetic is that of `sparse_conv`. Lanes of the batch that are empty have to hold finite
numbers, and gradients of 0.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from sparsefl.kernels import bitmap as bitmaps
from sparsefl.kernels import checks, registry
from sparsefl.kernels.group import BATCHES, Group, Index, Layer, Network
from sparsefl.kernels.layout import Bitmap

__all__ = ["Images", "dense_gradient", "forward", "input_gradient", "make", "weight_gradient"]

_call = registry.bind(__name__)


class Images(NamedTuple):
    """What a layer saw, [G, channels, height, width, B]: its input, and the gradient of z."""

    x: Tensor
    dz: Tensor


def make(network: Network, bitmap: Bitmap) -> Group:
    """The Group of clients whose patterns follow each other in `bitmap`."""
    layers = len(network.layers)
    clients = len(bitmap.segments) // max(layers, 1)
    if clients < 1 or bitmap.segments.sizes != network.sizes * clients:
        raise ValueError(
            f"expected patterns of {network.sizes}, once per client, got {bitmap.segments.sizes}"
        )
    if bitmap.nnz + clients * network.num_rest > 2**31 - 1:
        raise ValueError(f"expected at most 2^31 - 1 numbers in a group, got {bitmap.nnz} values")
    index = _call("group_index", bitmap.words.device, network, clients, bitmap)
    return Group(network, clients, bitmap, Index(*index))


def forward(
    group: Group, number: int, arena: Tensor, x: Tensor, y: Tensor, gate: Tensor | None = None
) -> None:
    """Layer `number` of every client: writes y, and gate (uint8, y's shape) where the layer has one."""
    layer = group.network.layers[number]
    _check_arena(group, arena=arena)
    batch = _check_images(group, layer.x_shape, x=x)
    _check_images(group, layer.y_shape, batch, y=y)
    _check_gate(layer, y, gate)
    _call("group_forward", x.device, group, number, arena, x, y, gate)


def input_gradient(
    group: Group,
    number: int,
    arena: Tensor,
    dz: Tensor,
    dx: Tensor,
    before: Layer | None = None,
    gate: Tensor | None = None,
    more: bool = False,
) -> None:
    """Writes the gradient of x into dx; with `before`, the layer that made x, the gradient of its z instead.

    gate  what `before` wrote, where it has a gate
    more  adds it to what dx has; not with `before`
    """
    layer = group.network.layers[number]
    _check_arena(group, arena=arena)
    batch = _check_images(group, layer.z_shape, dz=dz)
    _check_images(group, layer.x_shape if before is None else before.z_shape, batch, dx=dx)
    if before is not None:
        if more:
            raise ValueError("expected a gradient that is added to one of x, got `more` with `before`")
        if torch.Size(before.y_shape).numel() != torch.Size(layer.x_shape).numel():
            raise ValueError(f"expected a layer before it that makes {layer.x_shape}, got {before.y_shape}")
        shape = (group.clients, *before.y_shape, batch)
        _check_gate(before, dx.new_empty(0).expand(0), gate, shape)
    _call("group_input_gradient", dz.device, group, number, arena, dz, dx, before, gate, more)


def weight_gradient(group: Group, images: Sequence[Images], gradients: Tensor) -> None:
    """Writes the gradients of the arena; images: of every layer. What is no weight or bias is left alone."""
    _check_arena(group, gradients=gradients)
    _check_all(group, images)
    _call("group_weight_gradient", gradients.device, group, images, gradients)


def dense_gradient(group: Group, images: Sequence[Images], gradients: Tensor) -> None:
    """Writes the gradients of all weights of every client, [G * weights]."""
    checks.flat(gradients=gradients)
    checks.length(group.bitmap.segments.numel, "dense entries of the group", gradients=gradients)
    _check_all(group, images)
    _call("group_dense_gradient", gradients.device, group, images, gradients)


def full(network: Network, device: torch.device) -> Group:
    """One client that stores everything: the index of dense gradients. Made once per network and device."""
    made = lambda: make(network, bitmaps.full(network.sizes, device))  # noqa: E731
    return network.derived.of(f"full {device} {registry.backend_for(device.type)}", made)


def _check_arena(group: Group, **arena: Tensor) -> None:
    checks.flat(**arena)
    checks.length(group.length, "numbers in the group's arena", **arena)
    checks.same_device(bitmap=group.bitmap.words, **arena)


def _check_all(group: Group, images: Sequence[Images]) -> None:
    if len(images) != len(group.network.layers):
        raise ValueError(f"expected images of {len(group.network.layers)} layers, got {len(images)}")
    batch = None
    for layer, (x, dz) in zip(group.network.layers, images, strict=True):
        batch = _check_images(group, layer.x_shape, batch, x=x)
        _check_images(group, layer.z_shape, batch, dz=dz)


def _check_images(group: Group, shape: tuple[int, ...], batch: int | None = None, **images: Tensor) -> int:
    (name, x), *_ = images.items()
    batches = BATCHES if batch is None else (batch,)
    if tuple(x.shape[:-1]) != (group.clients, *shape) or x.shape[-1] not in batches:
        wanted = f"[{group.clients}, {', '.join(map(str, shape))}, {' or '.join(map(str, batches))}]"
        raise ValueError(f"expected {name} as {wanted}, got {tuple(x.shape)}")
    checks.dtype(*checks.FLOATS, **images)
    checks.contiguous(**images)
    checks.same_device(bitmap=group.bitmap.words, **images)
    return x.shape[-1]


def _check_gate(layer: Layer, y: Tensor, gate: Tensor | None, shape: tuple[int, ...] | None = None) -> None:
    if (gate is not None) != layer.gated:
        wanted = "a gate" if layer.gated else "no gate"
        raise ValueError(f"expected {wanted} of a layer with relu {layer.relu}, pool {layer.pool}")
    if gate is not None:
        checks.dtype(torch.uint8, gate=gate)
        checks.contiguous(gate=gate)
        wanted_shape = tuple(y.shape) if shape is None else shape
        if tuple(gate.shape) != wanted_shape:
            raise ValueError(f"expected a gate {wanted_shape}, got {tuple(gate.shape)}")
