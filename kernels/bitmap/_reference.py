"""Plain torch: the specification of the bitmap operations."""

import torch
from torch import Tensor

from sparsefl.kernels.layout import Csr, Segments, Transpose
from sparsefl.kernels.reference import bits, dense_mask, write_words
from sparsefl.kernels.registry import register


@register("bitmap_count", "reference")
def bitmap_count(words: Tensor, segments: Segments, offsets: Tensor) -> bool:
    """Writes the offsets of a Bitmap; False when a bit is set after the end of a tensor."""
    before = torch.zeros(len(words) + 1, dtype=torch.int64)
    before[1:] = bits(words).sum(1).cumsum(0)
    offsets.copy_(before[segments.starts])
    return segments.padded(words)


@register("bitmap_from_mask", "reference")
def bitmap_from_mask(mask: Tensor, segments: Segments, words: Tensor) -> None:
    write_words(mask, segments, words)


@register("bitmap_to_mask", "reference")
def bitmap_to_mask(words: Tensor, segments: Segments, mask: Tensor) -> None:
    mask.copy_(dense_mask(words, segments))


@register("bitmap_csr", "reference")
def bitmap_csr(words: Tensor, rows: int, cols: int, out: Csr) -> None:
    stored = bits(words).view(-1)[: rows * cols].view(rows, cols)
    out.columns.copy_(stored.nonzero()[:, 1])
    out.pointers[0] = 0
    out.pointers[1:] = stored.sum(1).cumsum(0)


@register("bitmap_transpose", "reference")
def bitmap_transpose(words: Tensor, rows: int, cols: int, out: Transpose) -> None:
    stored = bits(words).view(-1)[: rows * cols].view(rows, cols)
    column, row = stored.t().nonzero().unbind(1)
    rank = stored.view(-1).cumsum(0) - 1
    out.rows.copy_(row)
    out.order.copy_(rank[row * cols + column])
    out.pointers[0] = 0
    out.pointers[1:] = stored.sum(0).cumsum(0)
