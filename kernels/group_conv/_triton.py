"""Layers of a group. A tile is [rows, pixels, B]: images of convolutions take one output channel and many
pixels, linear layers many channels and one pixel. B is a constant, so every (channel, pixel) is 64 bytes or
more that are loaded 128 bits at a time.

Pool windows are an outer loop: the sum is computed once per place of the window, and the best one is kept.
The input gradient is written through the gate of the layer before, which leaves no pass for pool or ReLU.
Weight gradients of all layers of a kind are one launch, by a table; a program sums all pixels of its entries.
"""

from collections.abc import Sequence
from math import prod

import torch
import triton
import triton.language as tl
from torch import Tensor

from sparsefl.kernels import tile
from sparsefl.kernels.group import BATCHES, SHUT, Group, Layer, Network
from sparsefl.kernels.group_conv import Images, full
from sparsefl.kernels.group_conv._reference import biases
from sparsefl.kernels.layout import Bitmap
from sparsefl.kernels.registry import register

_CONV_TILE, _LINEAR_TILE, _GRADIENT_TILE = 1024, 1024, 1024  # numbers per program
_ENTRIES = 8  # entries whose gradient a program sums, of a convolution
_CLOSED = tl.constexpr(SHUT)
_TAP = tl.constexpr(0xFFFF)


# ---- index ----


@tile.kernel
def _index_kernel(WORDS, T, RANKS, SHAPES, ENTRIES, ROW, COLUMN, layers: tl.int64):
    b = tl.program_id(0).to(tl.int64)
    word, dense, size = tile.block_row(T, b)
    segment, first = tl.load(T + b * tile.FIELDS + 3), tl.load(T + b * tile.FIELDS + 4)
    words = tile.load_words(WORDS, word, size)
    stored = tile.to_bits(words)
    e = tl.load(RANKS + b) + tile.packed(words)
    S = SHAPES + segment % layers * 10
    g = segment // layers
    d = ((b - first) * tile.ROWS * tile.BITS).to(tl.int32) + tile.lanes()
    columns, taps, width = tl.load(S).to(tl.int32), tl.load(S + 1).to(tl.int32), tl.load(S + 2).to(tl.int32)
    o, k = d // columns, d % columns
    c, tap = k // taps, k % taps
    i, j = tap // width * tl.load(S + 3).to(tl.int32), tap % width * tl.load(S + 4).to(tl.int32)
    tl.store(ENTRIES + e * 4, c * tl.load(S + 5).to(tl.int32), mask=stored)
    tl.store(ENTRIES + e * 4 + 1, o * tl.load(S + 6).to(tl.int32), mask=stored)
    tl.store(ENTRIES + e * 4 + 2, (i << 16) | j, mask=stored)
    tl.store(ENTRIES + e * 4 + 3, e.to(tl.int32), mask=stored)
    tl.store(ROW + e, (g * tl.load(S + 7)).to(tl.int32) + tl.load(S + 8).to(tl.int32) + o, mask=stored)
    last = tl.load(S + 9)
    tl.store(COLUMN + e, (g * (last >> 32)).to(tl.int32) + (last & 0x7FFFFFFF).to(tl.int32) + c, mask=stored)


_index = tile.Config("group_index", _index_kernel, "*i64 *i64 *i64 *i64 *i32 *i32 *i32 i64", {})


@register("group_index", "triton")
def group_index(network: Network, clients: int, bitmap: Bitmap) -> tuple[Tensor, ...]:
    device = bitmap.words.device
    new = lambda *shape: torch.empty(shape, dtype=torch.int32, device=device)  # noqa: E731
    table, shapes = tile.blocks(bitmap.segments, device), _shapes(network, device)
    entries = new(bitmap.nnz + clients * network.num_rest, 4)
    row, column = new(bitmap.nnz), new(bitmap.nnz)
    given = bitmap.words, table, tile.ranks(bitmap), shapes, entries, row, column
    _index.launch(len(table), *given, len(network.layers))
    if network.num_rest:
        key = f"group biases {device}"
        ours = network.derived.of(key, lambda: tile.send(biases(network), device))
        entries[bitmap.nnz :].view(clients, -1, 4).copy_(ours.expand(clients, -1, 4))
    order = column.sort(stable=True)
    pointers = (
        torch.searchsorted(
            of, torch.arange(clients * n + 1, dtype=torch.int32, device=device), out_int32=True
        )
        for of, n in ((row, network.first_rows[-1]), (order.values, network.first_columns[-1]))
    )
    rows, columns = pointers
    return entries, rows, entries[: bitmap.nnz].index_select(0, order.indices), columns


def _shapes(network: Network, device: torch.device) -> Tensor:
    """int64 [layers, 10]: what an entry's place is computed with."""

    def made() -> Tensor:
        rows = []
        for layer, row, column in zip(
            network.layers, network.first_rows, network.first_columns, strict=False
        ):
            g = layer.geometry
            high, _ = g.kernel
            pixels = prod(layer.size), prod(layer.out)
            firsts = network.first_rows[-1], row, network.first_columns[-1] << 32 | column
            rows.append([layer.columns, g.taps, g.taps // high, *g.dilation, *pixels, *firsts])
        return tile.send(torch.tensor(rows, dtype=torch.int64).reshape(-1, 10), device)

    return network.derived.of(f"group shapes {device}", made)


# ---- forward ----


@triton.jit
def _tile(rows, pixels, ROWS: tl.constexpr, PIXELS: tl.constexpr):
    """Client, rows and pixels of this program."""
    program = tl.program_id(0)
    tiles, blocks = tl.cdiv(pixels, PIXELS), tl.cdiv(rows, ROWS)
    p = program % tiles * PIXELS + tl.arange(0, PIXELS)
    r = program // tiles % blocks * ROWS + tl.arange(0, ROWS)
    return (program // tiles // blocks).to(tl.int64), r, p


@tile.kernel
def _forward_kernel(
    X,
    ARENA,
    ENTRIES,
    POINTERS,
    Y,
    GATE,
    first: tl.int64,  # row of the layer in a client's list
    of_client: tl.int64,  # rows of a client
    bias: tl.int64,  # of client 0 in the arena, -1: none
    num_rest: tl.int64,
    inputs: tl.int64,  # pixels of a client's x
    height: tl.int64,
    width: tl.int64,
    channels: tl.int64,
    pooled_height: tl.int64,
    pooled_width: tl.int64,
    pool_height: tl.int64,
    pool_width: tl.int64,
    stride: tl.int64,
    pad_height: tl.int64,
    pad_width: tl.int64,
    relu: tl.int64,
    gated: tl.int64,
    B: tl.constexpr,
    ROWS: tl.constexpr,
    PIXELS: tl.constexpr,
    PADDED: tl.constexpr,
):
    height, width, stride = height.to(tl.int32), width.to(tl.int32), stride.to(tl.int32)
    rows, columns = channels.to(tl.int32), pooled_width.to(tl.int32)
    pixels = (pooled_height * pooled_width).to(tl.int32)
    down, across = pool_height.to(tl.int32), pool_width.to(tl.int32)
    g, r, p = _tile(rows, pixels, ROWS, PIXELS)
    b = tl.arange(0, B)
    at = POINTERS + g * of_client + first + r
    lo, hi = tl.load(at, mask=r < rows, other=0), tl.load(at + 1, mask=r < rows, other=0)
    longest = tl.max(hi - lo, 0)
    offset = tl.load(ARENA + bias + g * num_rest + r, mask=(r < rows) & (bias >= 0), other=0)
    X = tl.multiple_of(X + g * inputs * B, 16)
    here = tl.minimum(p, pixels - 1)  # those past the end compute what the last one does
    best = tl.full([ROWS, PIXELS, B], 0, tl.float32)
    place = tl.full([ROWS, PIXELS, B], 0, tl.int32)
    for q in range(down * across):
        h = (here // columns * down + q // across) * stride - pad_height.to(tl.int32)
        w = (here % columns * across + q % across) * stride - pad_width.to(tl.int32)
        z = tl.full([ROWS, PIXELS, B], 0, tl.float32)
        for k in range(longest):
            e = lo + k
            live = e < hi
            pixel = tl.load(ENTRIES + e * 4, mask=live, other=0)
            tap = tl.load(ENTRIES + e * 4 + 2, mask=live, other=0)
            v = tl.load(ARENA + e, mask=live, other=0)
            i, j = h[None, :] + (tap >> 16)[:, None], w[None, :] + (tap & _TAP)[:, None]
            address = (pixel[:, None] + i * width + j) * B
            if PADDED:
                inside = (i >= 0) & (i < height) & (j >= 0) & (j < width)
                x = tl.load(X + (address[:, :, None] + b[None, None, :]), mask=inside[:, :, None], other=0)
            else:  # a row that has ended reads its first tap, times 0
                x = tl.load(X + (address[:, :, None] + b[None, None, :]))
            z += v[:, None, None] * x
        z += offset[:, None, None]
        better = (z > best) | (z != z) | (q == 0)
        best, place = tl.where(better, z, best), tl.where(better, q, place)
    if relu != 0:
        place = tl.where(best > 0, place, _CLOSED)
        best = tl.where(best < 0, 0.0, best)
    ours = g * rows * pixels * B
    Y, GATE = tl.multiple_of(Y + ours, 16), tl.multiple_of(GATE + ours, 16)
    outside = (r[:, None] * pixels + p[None, :]) * B
    kept = ((r < rows)[:, None] & (p < pixels)[None, :])[:, :, None]
    tl.store(Y + (outside[:, :, None] + b[None, None, :]), best, mask=kept)
    if gated != 0:
        tl.store(GATE + (outside[:, :, None] + b[None, None, :]), place.to(tl.uint8), mask=kept)


_FORWARD = "*fp32 *fp32 *i32 *i32 *fp32 *u8" + " i64" * 17


def _tiles(b: int) -> dict[bool, dict[str, int]]:
    """Constants of the tile, by linear or not."""
    return {
        True: {"B": b, "ROWS": _LINEAR_TILE // b, "PIXELS": 1},
        False: {"B": b, "ROWS": 1, "PIXELS": _CONV_TILE // b},
    }


_forward = {
    (b, linear, padded): tile.Config(
        "group_forward", _forward_kernel, _FORWARD, {**_tiles(b)[linear], "PADDED": padded}
    )
    for b in BATCHES
    for linear, padded in ((True, False), (False, False), (False, True))
}


def _programs(group: Group, config: tile.Config, rows: int, pixels: int) -> int:
    size = config.constants
    return group.clients * triton.cdiv(rows, size["ROWS"]) * triton.cdiv(pixels, size["PIXELS"])


@register("group_forward", "triton")
def group_forward(
    group: Group, number: int, arena: Tensor, x: Tensor, y: Tensor, gate: Tensor | None
) -> None:
    network = group.network
    layer, how = network.layers[number], network.layers[number].geometry
    tile.float32(arena=arena, x=x, y=y)
    config = _forward[x.shape[-1], layer.linear, any(how.padding)]
    config.launch(
        _programs(group, config, how.out_channels, prod(layer.pooled)),
        *(x, arena, group.index.entries, group.index.rows, y),
        _none(x) if gate is None else gate,
        *(network.first_rows[number], network.first_rows[-1]),
        -1 if layer.bias is None else group.bitmap.nnz + layer.bias,
        *(network.num_rest, prod(layer.x_shape), *layer.size, how.out_channels, *layer.pooled, *layer.pool),
        *(how.stride, *how.padding, int(layer.relu), int(gate is not None)),
    )


def _none(x: Tensor) -> Tensor:
    """A place for bytes that nobody reads or writes."""
    return x.view(torch.uint8)


# ---- input gradient ----


@tile.kernel
def _input_gradient_kernel(
    DZ,
    ARENA,
    TURNED,
    POINTERS,
    DX,
    GATE,
    first: tl.int64,  # column of the layer in a client's list
    of_client: tl.int64,
    outputs: tl.int64,  # pixels of a client's z
    height: tl.int64,
    width: tl.int64,
    channels: tl.int64,
    out_height: tl.int64,
    out_width: tl.int64,
    stride: tl.int64,
    pad_height: tl.int64,
    pad_width: tl.int64,
    before_height: tl.int64,  # z of the layer before, its pooled image, its windows
    before_width: tl.int64,
    pooled_height: tl.int64,
    pooled_width: tl.int64,
    pool_height: tl.int64,
    pool_width: tl.int64,
    gated: tl.int64,
    more: tl.int64,
    B: tl.constexpr,
    ROWS: tl.constexpr,
    PIXELS: tl.constexpr,
    LINEAR: tl.constexpr,
):
    width, stride, rows = width.to(tl.int32), stride.to(tl.int32), channels.to(tl.int32)
    out_height, out_width = out_height.to(tl.int32), out_width.to(tl.int32)
    pixels = height.to(tl.int32) * width
    g, r, p = _tile(rows, pixels, ROWS, PIXELS)
    b = tl.arange(0, B)
    at = POINTERS + g * of_client + first + r
    lo, hi = tl.load(at, mask=r < rows, other=0), tl.load(at + 1, mask=r < rows, other=0)
    longest = tl.max(hi - lo, 0)
    DZ = tl.multiple_of(DZ + g * outputs * B, 16)
    h, w = p // width + pad_height.to(tl.int32), p % width + pad_width.to(tl.int32)
    dx = tl.full([ROWS, PIXELS, B], 0, tl.float32)
    for k in range(longest):
        e = lo + k
        live = e < hi
        pixel = tl.load(TURNED + e * 4 + 1, mask=live, other=0)
        v = tl.load(ARENA + tl.load(TURNED + e * 4 + 3, mask=live, other=0), mask=live, other=0)
        if LINEAR:
            address = (pixel * B)[:, None, None] + b[None, None, :]
            dx += v[:, None, None] * tl.load(DZ + address)
        else:
            tap = tl.load(TURNED + e * 4 + 2, mask=live, other=0)
            i, j = h[None, :] - (tap >> 16)[:, None], w[None, :] - (tap & _TAP)[:, None]
            inside = (i >= 0) & (j >= 0)
            if stride != 1:
                inside &= (i % stride == 0) & (j % stride == 0)
                i, j = i // stride, j // stride
            inside &= (i < out_height) & (j < out_width)
            address = (pixel[:, None] + i * out_width + j) * B
            dz = tl.load(DZ + (address[:, :, None] + b[None, None, :]), mask=inside[:, :, None], other=0)
            dx += v[:, None, None] * dz
    # the pixel of x is one of the pooled image of the layer before: flat, x may be seen as a vector
    kept = ((r < rows)[:, None] & (p < pixels)[None, :])[:, :, None]
    q = r[:, None] * pixels + p[None, :]
    down, across = pool_height.to(tl.int32), pool_width.to(tl.int32)
    rows_of_y, columns_of_y = pooled_height.to(tl.int32), pooled_width.to(tl.int32)
    place = tl.full([ROWS, PIXELS, B], 0, tl.int32)
    ours = g * rows * pixels * B
    if gated != 0:
        GATE = tl.multiple_of(GATE + ours, 16)
        flat = q * B
        place = tl.load(GATE + (flat[:, :, None] + b[None, None, :]), mask=kept, other=0).to(tl.int32)
    y = q // columns_of_y % rows_of_y
    x = q % columns_of_y
    before_height, before_width = before_height.to(tl.int32), before_width.to(tl.int32)
    images = rows * pixels // (rows_of_y * columns_of_y)  # channels of the layer before
    DX = tl.multiple_of(DX + g * images * before_height * before_width * B, 16)
    to = (q // (rows_of_y * columns_of_y) * before_height + y * down) * before_width + x * across
    extra_rows = before_height - rows_of_y * down  # that no window has: the last one writes them
    extra_columns = before_width - columns_of_y * across
    for i in range(down + extra_rows):
        for j in range(across + extra_columns):
            mine = ((i < down) | (y == rows_of_y - 1)) & ((j < across) | (x == columns_of_y - 1))
            open_here = (place == i * across + j) & (i < down) & (j < across)
            address = (to + i * before_width + j) * B
            there = DX + (address[:, :, None] + b[None, None, :])
            value = tl.where(open_here, dx, 0.0)
            if more != 0:
                value += tl.load(there, mask=kept & mine[:, :, None], other=0)
            tl.store(there, value, mask=kept & mine[:, :, None])


_input_gradient = {
    (b, linear): tile.Config(
        "group_input_gradient",
        _input_gradient_kernel,
        "*fp32 *fp32 *i32 *i32 *fp32 *u8" + " i64" * 19,
        {**_tiles(b)[linear], "LINEAR": linear},
    )
    for b in BATCHES
    for linear in (True, False)
}


@register("group_input_gradient", "triton")
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
    network = group.network
    layer, how = network.layers[number], network.layers[number].geometry
    tile.float32(arena=arena, dz=dz, dx=dx)
    config = _input_gradient[dz.shape[-1], layer.linear]
    gates = (
        (*layer.size, *layer.size, 1, 1) if before is None else (*before.out, *before.pooled, *before.pool)
    )
    config.launch(
        _programs(group, config, how.in_channels, prod(layer.size)),
        *(dz, arena, group.index.turned, group.index.columns, dx, _none(dx) if gate is None else gate),
        *(network.first_columns[number], network.first_columns[-1], prod(layer.z_shape), *layer.size),
        *(how.in_channels, *layer.out, how.stride, *how.padding, *gates, int(gate is not None), int(more)),
    )


# ---- weight gradient ----


@tile.kernel
def _weight_gradient_kernel(
    BASE, ENTRIES, T, SHAPES, D, B: tl.constexpr, ROWS: tl.constexpr, PIXELS: tl.constexpr
):
    T += tl.program_id(0).to(tl.int64) * 5
    first, end, number, g, into = (
        tl.load(T), tl.load(T + 1), tl.load(T + 2), tl.load(T + 3), tl.load(T + 4)
    )  # fmt: skip
    S = SHAPES + number * 11
    X = tl.multiple_of(BASE + tl.load(S) + g * tl.load(S + 1) * B, 16)
    DZ = tl.multiple_of(BASE + tl.load(S + 2) + g * tl.load(S + 3) * B, 16)
    height, width = tl.load(S + 4).to(tl.int32), tl.load(S + 5).to(tl.int32)
    pixels, out_width = tl.load(S + 6).to(tl.int32), tl.load(S + 7).to(tl.int32)
    stride = tl.load(S + 8).to(tl.int32)
    pad_height, pad_width = tl.load(S + 9).to(tl.int32), tl.load(S + 10).to(tl.int32)
    b = tl.arange(0, B)
    e = first + tl.arange(0, ROWS)
    live = e < end
    of_x = tl.load(ENTRIES + e * 4, mask=live, other=0)
    of_z = tl.load(ENTRIES + e * 4 + 1, mask=live, other=0)
    tap = tl.load(ENTRIES + e * 4 + 2, mask=live, other=0)
    is_bias = tap < 0
    total = tl.full([ROWS, PIXELS, B], 0, tl.float32)
    for start in range(0, pixels, PIXELS):
        p = start + tl.arange(0, PIXELS)
        i = (p // out_width * stride - pad_height)[None, :] + (tap >> 16)[:, None]
        j = (p % out_width * stride - pad_width)[None, :] + (tap & _TAP)[:, None]
        inside = live[:, None] & (p < pixels)[None, :]
        in_image = inside & (i >= 0) & (i < height) & (j >= 0) & (j < width) & (is_bias == 0)[:, None]
        at_z = (of_z[:, None] + p[None, :]) * B
        at_x = (of_x[:, None] + i * width + j) * B
        dz = tl.load(DZ + (at_z[:, :, None] + b[None, None, :]), mask=inside[:, :, None], other=0)
        x = tl.load(X + (at_x[:, :, None] + b[None, None, :]), mask=in_image[:, :, None], other=0)
        total += tl.where(is_bias[:, None, None], 1.0, x) * dz
    tl.store(D + into + tl.arange(0, ROWS), tl.sum(tl.sum(total, 2), 1), mask=live)


def _gradient_tiles(b: int) -> dict[bool, dict[str, int]]:
    rows = _ENTRIES if b < 64 else _GRADIENT_TILE // b  # two pixels of 64 lanes spill registers on sm_80
    return {
        True: {"B": b, "ROWS": _GRADIENT_TILE // b, "PIXELS": 1},
        False: {"B": b, "ROWS": rows, "PIXELS": _GRADIENT_TILE // b // rows},
    }


_weight_gradient = {
    (b, linear): tile.Config(
        op, _weight_gradient_kernel, "*fp32 *i32 *i64 *i64 *fp32", _gradient_tiles(b)[linear]
    )
    for op in ("group_weight_gradient",)
    for b in BATCHES
    for linear in (True, False)
}


@register("group_weight_gradient", "triton")
def group_weight_gradient(group: Group, images: Sequence[Images], gradients: Tensor) -> None:
    _summed(group, group.index.entries, images, gradients, dense=False)


@register("group_dense_gradient", "triton")
def group_dense_gradient(group: Group, images: Sequence[Images], gradients: Tensor) -> None:
    everything = full(group.network, gradients.device)
    _summed(group, everything.index.entries, images, gradients, dense=True)


def _summed(group: Group, entries: Tensor, images: Sequence[Images], out: Tensor, dense: bool) -> None:
    """One launch for convolutions, one for linear layers."""
    base, batch = images[0].x, images[0].x.shape[-1]
    tile.float32(base=base, out=out)
    places = tuple((x.data_ptr() - base.data_ptr()) // 4 for seen in images for x in seen)
    shapes = group.bitmap.derived.of(
        f"group gradients {out.device} {places}",
        lambda: tile.send(_places(group.network, places), out.device),
    )
    for linear in (False, True):
        config = _weight_gradient[batch, linear]
        rows = config.constants["ROWS"]
        made = lambda linear=linear, rows=rows: tile.send(_work(group, linear, rows, dense), out.device)  # noqa: E731
        table = group.bitmap.derived.of(f"group work {linear} {rows} {dense}", made)
        config.launch(len(table), base, entries, table, shapes, out)


def _places(network: Network, places: tuple[int, ...]) -> Tensor:
    """int64 [layers, 11]: where x and dz are, and what a pass has to know of the layer."""
    rows = []
    for layer, x, dz in zip(network.layers, places[::2], places[1::2], strict=True):
        g = layer.geometry
        images = x, prod(layer.x_shape), dz, prod(layer.z_shape)
        rows.append([*images, *layer.size, prod(layer.out), layer.out[1], g.stride, *g.padding])
    return torch.tensor(rows, dtype=torch.int64).reshape(-1, 11)


def _work(group: Group, linear: bool, step: int, dense: bool) -> Tensor:
    """int64 [programs, 5]: first entry, end, layer, client, and where the first one's gradient goes."""
    network, nnz, layers = group.network, group.bitmap.nnz, len(group.network.layers)
    offsets, starts = group.bitmap.offsets.tolist(), group.bitmap.segments.dense.tolist()
    parts: list[tuple[int, int, int, int, int]] = []
    for g in range(group.clients):
        for number, layer in enumerate(network.layers):
            if layer.linear != linear:
                continue
            s = g * layers + number
            if dense:
                parts.append((starts[number], starts[number + 1], number, g, starts[s]))
                continue
            parts.append((offsets[s], offsets[s + 1], number, g, offsets[s]))
            if layer.bias is not None:
                lo = nnz + g * network.num_rest + layer.bias
                parts.append((lo, lo + layer.geometry.out_channels, number, g, lo))
    table = torch.tensor(parts, dtype=torch.int64).reshape(-1, 5)
    programs = -(-(table[:, 1] - table[:, 0]) // step)
    found = table.repeat_interleave(programs, 0)
    first = (programs.cumsum(0) - programs).repeat_interleave(programs)
    done = (torch.arange(len(found)) - first) * step
    found[:, 0] += done
    found[:, 4] += done
    found[:, 1] = found[:, 1].minimum(found[:, 0] + step)
    return found
