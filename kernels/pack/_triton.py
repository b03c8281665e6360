"""One program a block of 1024 entries:   packed[rank] = dense[entry]   and back

int32 as well as float32: the transpose of a bitmap moves packed indices through the same kernels.
"""

import torch
import triton.language as tl
from torch import Tensor

from sparsefl.kernels import tile
from sparsefl.kernels.layout import Bitmap
from sparsefl.kernels.registry import register


@tile.kernel
def _pack_kernel(D, WORDS, T, RANKS, V):
    b = tl.program_id(0).to(tl.int64)
    word, dense, size = tile.block_row(T, b)
    words = tile.load_words(WORDS, word, size)
    stored = tile.to_bits(words)
    v = tl.load(D + dense + tile.lanes(), mask=stored, other=0)
    tl.store(V + tl.load(RANKS + b) + tile.packed(words), v, mask=stored)


@tile.kernel
def _unpack_kernel(V, WORDS, T, RANKS, D, ALIGNED: tl.constexpr):
    b = tl.program_id(0).to(tl.int64)
    word, dense, size = tile.block_row(T, b)
    words = tile.load_words(WORDS, word, size)
    v = tl.load(V + tl.load(RANKS + b) + tile.packed(words), mask=tile.to_bits(words), other=0)
    D, inside = tile.dense_lanes(D, dense, size, ALIGNED)
    tl.store(D, v, mask=inside)


_FLOATS, _INDICES = "*fp32 *i64 *i64 *i64 *fp32", "*i32 *i64 *i64 *i64 *i32"
_pack = {
    torch.float32: tile.Config("pack", _pack_kernel, _FLOATS, {}),
    torch.int32: tile.Config("bitmap_transpose", _pack_kernel, _INDICES, {}),
}
_unpack = {
    (dtype, aligned): tile.Config(op, _unpack_kernel, types, {"ALIGNED": aligned})
    for dtype, op, types in ((torch.float32, "unpack", _FLOATS), (torch.int32, "bitmap_transpose", _INDICES))
    for aligned in (True, False)
}


@register("pack", "triton")
def pack(dense: Tensor, bitmap: Bitmap, out: Tensor) -> None:
    tile.float32(dense=dense)
    pack_any(dense, bitmap, out)


@register("unpack", "triton")
def unpack(values: Tensor, bitmap: Bitmap, out: Tensor) -> None:
    tile.float32(values=values)
    unpack_any(values, bitmap, out)


def pack_any(dense: Tensor, bitmap: Bitmap, out: Tensor) -> None:
    """`pack` for float32 or int32."""
    table = tile.blocks(bitmap.segments, dense.device)
    _pack[dense.dtype].launch(len(table), dense, bitmap.words, table, tile.ranks(bitmap), out)


def unpack_any(values: Tensor, bitmap: Bitmap, out: Tensor) -> None:
    """`unpack` for float32 or int32."""
    table = tile.blocks(bitmap.segments, values.device)
    config = _unpack[values.dtype, tile.aligned_dense(out, bitmap.segments)]
    config.launch(len(table), values, bitmap.words, table, tile.ranks(bitmap), out)
