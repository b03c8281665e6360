"""Bitmaps, one program a block of 1024 entries (a tile of 16 words x 64 bits):

    csr        columns[rank] = entry mod cols;   pointers[entry div cols] = rank   where entry mod cols = 0
    transpose  place = packed index + 1 of every entry (0: not stored) as a dense matrix, transposed;
               its non-zeros are the transposed bitmap, and packed again they are the order

The transpose costs two dense int32 matrices for a moment, and no sort.
"""

import torch
import triton.language as tl
from torch import Tensor

from sparsefl.kernels import tile
from sparsefl.kernels.layout import Bitmap, Csr, Segments, Transpose
from sparsefl.kernels.registry import register


@register("bitmap_count", "triton")
def bitmap_count(words: Tensor, segments: Segments, offsets: Tensor) -> bool:
    table = tile.blocks(segments, words.device)
    total = torch.zeros(len(segments), dtype=torch.int64, device=words.device)
    if len(table):
        total.index_add_(0, table[:, 3], tile.counts(words, table))  # integers: any order gives one result
    offsets[0] = 0
    offsets[1:] = total.cumsum(0)
    return segments.padded(words)


@tile.kernel
def _from_mask_kernel(M, T, WORDS, ALIGNED: tl.constexpr):
    b = tl.program_id(0).to(tl.int64)
    word, dense, size = tile.block_row(T, b)
    M, inside = tile.dense_lanes(M, dense, size, ALIGNED)
    m = tl.load(M, mask=inside, other=0)
    tile.store_words(WORDS, word, size, tile.to_words(m != 0))


_from_mask = {
    aligned: tile.Config("bitmap_from_mask", _from_mask_kernel, "*u8 *i64 *i64", {"ALIGNED": aligned})
    for aligned in (True, False)
}


@register("bitmap_from_mask", "triton")
def bitmap_from_mask(mask: Tensor, segments: Segments, words: Tensor) -> None:
    table = tile.blocks(segments, mask.device)
    config = _from_mask[tile.aligned_dense(mask, segments)]
    config.launch(len(table), mask.view(torch.uint8), table, words)


@tile.kernel
def _to_mask_kernel(WORDS, T, M, ALIGNED: tl.constexpr):
    b = tl.program_id(0).to(tl.int64)
    word, dense, size = tile.block_row(T, b)
    m = tile.to_bits(tile.load_words(WORDS, word, size))
    M, inside = tile.dense_lanes(M, dense, size, ALIGNED)
    tl.store(M, m.to(tl.uint8), mask=inside)


_to_mask = {
    aligned: tile.Config("bitmap_to_mask", _to_mask_kernel, "*i64 *i64 *u8", {"ALIGNED": aligned})
    for aligned in (True, False)
}


@register("bitmap_to_mask", "triton")
def bitmap_to_mask(words: Tensor, segments: Segments, mask: Tensor) -> None:
    table = tile.blocks(segments, words.device)
    config = _to_mask[tile.aligned_dense(mask, segments)]
    config.launch(len(table), words, table, mask.view(torch.uint8))


@tile.kernel
def _csr_kernel(WORDS, T, RANKS, POINTERS, COLUMNS, cols: tl.int64):
    b = tl.program_id(0).to(tl.int64)
    word, dense, size = tile.block_row(T, b)
    words = tile.load_words(WORDS, word, size)
    rank = tl.load(RANKS + b).to(tl.int32) + tile.packed(words)
    entry = dense.to(tl.int32) + tile.lanes()  # fewer than 2^31 in a matrix
    row = entry // cols.to(tl.int32)
    column = entry - row * cols.to(tl.int32)
    tl.store(COLUMNS + rank, column, mask=tile.to_bits(words))
    tl.store(POINTERS + row, rank, mask=(column == 0) & (tile.lanes() < size))


_csr = tile.Config("bitmap_csr", _csr_kernel, "*i64 *i64 *i64 *i32 *i32 i64", {})


@register("bitmap_csr", "triton")
def bitmap_csr(words: Tensor, rows: int, cols: int, out: Csr) -> None:
    _csr_of(_matrix(words, rows * cols, out.columns.numel()), cols, out)


@register("bitmap_transpose", "triton")
def bitmap_transpose(words: Tensor, rows: int, cols: int, out: Transpose) -> None:
    nnz, device = out.order.numel(), words.device
    place = torch.empty(rows * cols, dtype=torch.int32, device=device)
    number = torch.arange(1, nnz + 1, dtype=torch.int32, device=device)
    tile.unpack(number, _matrix(words, rows * cols, nnz), place)
    place = place.view(rows, cols).t().contiguous().view(-1)
    flipped = _matrix(torch.empty_like(words), rows * cols, nnz)
    bitmap_from_mask(place != 0, flipped.segments, flipped.words)
    _csr_of(flipped, rows, Csr(out.pointers, out.rows))
    tile.pack(place - 1, flipped, out.order)


def _csr_of(matrix: Bitmap, cols: int, out: Csr) -> None:
    table = tile.blocks(matrix.segments, matrix.words.device)
    _csr.launch(len(table), matrix.words, table, tile.ranks(matrix), out.pointers, out.columns, cols)
    out.pointers[-1] = matrix.nnz


def _matrix(words: Tensor, size: int, nnz: int) -> Bitmap:
    return Bitmap(words, Segments((size,)), torch.tensor([0, nnz]))
