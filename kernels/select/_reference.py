"""Plain torch: the specification of selection, by stable sort."""

from collections.abc import Mapping

import torch
from torch import Tensor

from sparsefl.kernels.layout import Bitmap
from sparsefl.kernels.reference import dense_mask, write_words
from sparsefl.kernels.registry import register
from sparsefl.kernels.select import _by_layer


@register("select", "reference")
def select(x: Tensor, candidates: Bitmap, k: Tensor, largest: bool, dense: bool, words: Tensor) -> bool:
    """Writes the chosen bits into words; False when a candidate is NaN."""
    stored = dense_mask(candidates.words, candidates.segments)
    score = x[stored].abs() if dense else x.abs()
    if score.isnan().any():
        return False
    position = stored.nonzero().view(-1)
    chosen = torch.zeros_like(stored)
    sizes = candidates.counts.tolist()
    for s, at, count in zip(score.split(sizes), position.split(sizes), k.tolist(), strict=True):
        chosen[at[s.sort(descending=largest, stable=True).indices[:count]]] = True
    write_words(chosen, candidates.segments, words)
    return True


@register("grow", "reference")
def grow(kept: Bitmap, scores: Mapping[int, Tensor], k: Tensor, words: Tensor) -> bool:
    """False when a candidate is NaN."""
    return _by_layer.grow(select, kept, scores, k, words)
