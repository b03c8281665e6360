"""Plain torch, a client at a time: the specification of layers of a group."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from sparsefl.kernels.group import SHUT, Group, Layer, Network
from sparsefl.kernels.group_conv import Images
from sparsefl.kernels.layout import Bitmap
from sparsefl.kernels.reference import dense_mask
from sparsefl.kernels.registry import register


@register("group_index", "reference")
def group_index(network: Network, clients: int, bitmap: Bitmap) -> tuple[Tensor, ...]:
    """Every number by its definition (kernels/group.py), entry by entry."""
    mask = dense_mask(bitmap.words, bitmap.segments).split(bitmap.segments.sizes)
    entries, row_of, column_of = [], [], []
    for s, stored in enumerate(mask):
        g, number = divmod(s, len(network.layers))
        layer = network.layers[number]
        (kh, kw), (dh, dw) = layer.geometry.kernel, layer.geometry.dilation
        for d in stored.nonzero().flatten().tolist():
            o, k = divmod(d, layer.columns)
            c, tap = divmod(k, kh * kw)
            i, j = divmod(tap, kw)
            pixels = c * layer.size[0] * layer.size[1], o * layer.out[0] * layer.out[1]
            entries.append([*pixels, (i * dh) << 16 | j * dw, 0])
            row_of.append(g * network.first_rows[-1] + network.first_rows[number] + o)
            column_of.append(g * network.first_columns[-1] + network.first_columns[number] + c)
    stored_entries = torch.tensor(entries, dtype=torch.int32).reshape(-1, 4)
    order = torch.tensor(column_of, dtype=torch.int64).argsort(stable=True)
    turned = stored_entries[order]
    turned[:, 3] = order
    whole = torch.cat([stored_entries, biases(network).repeat(clients, 1)])
    rows, columns = (
        torch.bincount(torch.tensor(of, dtype=torch.int64), minlength=clients * n).cumsum(0)
        for of, n in ((row_of, network.first_rows[-1]), (column_of, network.first_columns[-1]))
    )
    return whole, F.pad(rows, (1, 0)).int(), turned, F.pad(columns, (1, 0)).int()


def biases(network: Network) -> Tensor:
    """int32 [num_rest, 4]: the entries of a client's biases. What is no bias stays at the first pixel."""
    found = torch.zeros(network.num_rest, 4, dtype=torch.int32)
    found[:, 2] = -1
    for layer in network.layers:
        if layer.bias is not None:
            channels = torch.arange(layer.geometry.out_channels, dtype=torch.int32)
            found[layer.bias : layer.bias + len(channels), 1] = channels * (layer.out[0] * layer.out[1])
    return found


def _weights(group: Group, number: int, arena: Tensor) -> tuple[Tensor, Tensor | None]:
    """Dense weights [G, out, in, kh, kw] and biases [G, out]."""
    layer, layers = group.network.layers[number], len(group.network.layers)
    dense = torch.zeros(group.bitmap.segments.numel, dtype=arena.dtype, device=arena.device)
    dense[dense_mask(group.bitmap.words, group.bitmap.segments)] = arena[: group.bitmap.nnz]
    parts = dense.split(group.bitmap.segments.sizes)[number::layers]
    weights = torch.stack([part.view(layer.geometry.shape) for part in parts])
    if layer.bias is None:
        return weights, None
    rest = arena[group.bitmap.nnz :].view(group.clients, -1)
    return weights, rest[:, layer.bias : layer.bias + layer.geometry.out_channels]


def _convolved(layer: Layer, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """z of one client; x [C, H, W, B]."""
    how = layer.geometry.stride, layer.geometry.padding, layer.geometry.dilation
    return F.conv2d(x.movedim(-1, 0), weight, bias, *how).movedim(0, -1)


@register("group_forward", "reference")
def group_forward(
    group: Group, number: int, arena: Tensor, x: Tensor, y: Tensor, gate: Tensor | None
) -> None:
    layer = group.network.layers[number]
    weights, biases = _weights(group, number, arena)
    for g in range(group.clients):
        z = _convolved(layer, x[g], weights[g], None if biases is None else biases[g])
        (ph, pw), (h, w) = layer.pool, layer.pooled
        windows = z[:, : h * ph, : w * pw].reshape(len(z), h, ph, w, pw, -1)
        best, place = windows.movedim(4, 3).flatten(2, 3).max(2)
        if gate is not None:
            shut = torch.full_like(place, SHUT)
            gate[g] = torch.where(best > 0, place, shut) if layer.relu else place
        y[g] = best.relu() if layer.relu else best


@register("group_input_gradient", "reference")
def group_input_gradient(
    group: Group,
    number: int,
    arena: Tensor,
    dz: Tensor,
    dx: Tensor,
    before: Layer | None,
    gate: Tensor | None,
    more: bool,
) -> None:
    layer = group.network.layers[number]
    weights, _ = _weights(group, number, arena)
    for g in range(group.clients):
        x = torch.zeros(*layer.x_shape, dz.shape[-1], dtype=dz.dtype, device=dz.device, requires_grad=True)
        with torch.enable_grad():
            (found,) = torch.autograd.grad(_convolved(layer, x, weights[g], None), x, dz[g])
        ours = found.view(dx.shape[1:]) if before is None or gate is None else _opened(before, found, gate[g])
        dx[g] = dx[g] + ours if more else ours


def _opened(before: Layer, dy: Tensor, gate: Tensor) -> Tensor:
    """The gradient of z from that of y."""
    dy = dy.reshape(*before.y_shape, -1)
    dz = dy.new_zeros(*before.z_shape, dy.shape[-1])
    (ph, pw), (h, w) = before.pool, before.pooled
    for i in range(ph):
        for j in range(pw):
            dz[:, i : h * ph : ph, j : w * pw : pw] = torch.where(gate == i * pw + j, dy, 0.0)
    return dz


def _gradients(group: Group, number: int, x: Tensor, dz: Tensor) -> Tensor:
    """[G, out, in, kh, kw]"""
    layer, found = group.network.layers[number], []
    for g in range(group.clients):
        weight = torch.zeros(layer.geometry.shape, dtype=x.dtype, device=x.device, requires_grad=True)
        with torch.enable_grad():
            found += torch.autograd.grad(_convolved(layer, x[g], weight, None), weight, dz[g])
    return torch.stack(found)


@register("group_dense_gradient", "reference")
def group_dense_gradient(group: Group, images: Sequence[Images], gradients: Tensor) -> None:
    parts = [_gradients(group, number, *seen).flatten(1) for number, seen in enumerate(images)]
    gradients.copy_(torch.cat(parts, 1).flatten())


@register("group_weight_gradient", "reference")
def group_weight_gradient(group: Group, images: Sequence[Images], gradients: Tensor) -> None:
    dense = gradients.new_empty(group.bitmap.segments.numel)
    group_dense_gradient(group, images, dense)
    gradients[: group.bitmap.nnz] = dense[dense_mask(group.bitmap.words, group.bitmap.segments)]
    rest = gradients[group.bitmap.nnz :].view(group.clients, -1)
    for layer, (_, dz) in zip(group.network.layers, images, strict=True):
        if layer.bias is not None:
            rest[:, layer.bias : layer.bias + layer.geometry.out_channels] = dz.sum((2, 3, 4))
