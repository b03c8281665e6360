"""What the reference implementations share: bits of a bitmap as bool tensors, and back. Plain torch."""

import torch
from torch import Tensor

from sparsefl.kernels.layout import WORD, Segments


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


def write_words(mask: Tensor, segments: Segments, words: Tensor) -> None:
    """The bits of a bool mask [numel] into the words of a bitmap, every segment padded."""
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
