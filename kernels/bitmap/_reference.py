"""Plain torch: the specification of the bitmap operations."""

import torch
from torch import Tensor

from sparsefl.kernels.layout import WORD, Csr, Segments, Transpose
from sparsefl.kernels.registry import register


@register("bitmap_count", "reference")
def bitmap_count(words: Tensor, segments: Segments) -> Tensor:
    per_word = bits(words).sum(1).cpu()
    return torch.stack(
        [per_word[lo:hi].sum() for lo, hi in zip(segments.starts[:-1], segments.starts[1:], strict=True)]
    )


@register("bitmap_from_mask", "reference")
def bitmap_from_mask(mask: Tensor, segments: Segments, words: Tensor) -> None:
    words.zero_()
    position = torch.arange(WORD, device=mask.device)
    for entries, lo, hi in zip(
        mask.split(segments.sizes), segments.starts[:-1], segments.starts[1:], strict=True
    ):
        padded = torch.zeros(int(hi - lo) * WORD, dtype=torch.int64, device=mask.device)
        padded[: entries.numel()] = entries
        words[lo:hi] = (padded.view(-1, WORD) << position).sum(
            1
        )  # sums of distinct powers: wraps at bit 63 as it should


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


def bits(words: Tensor) -> Tensor:
    """bool [words, 64]"""
    return ((words[:, None] >> torch.arange(WORD, device=words.device)) & 1).bool()


def dense_mask(words: Tensor, segments: Segments) -> Tensor:
    """bool [numel]: every segment's bits without the padding."""
    stored = bits(words).view(-1)
    parts = [
        stored[lo * WORD : lo * WORD + n]
        for lo, n in zip(segments.starts.tolist(), segments.sizes, strict=False)
    ]
    return torch.cat(parts) if parts else stored
