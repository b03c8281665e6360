"""Growth by `select`, for backends without a kernel of its own: all layers in one selection, or one each."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from sparsefl.kernels import bitmap as bitmaps
from sparsefl.kernels.layout import Bitmap


def grow(
    select: Callable[[Tensor, Bitmap, Tensor, bool, bool, Tensor], bool],
    kept: Bitmap,
    scores: Mapping[int, Tensor],
    k: Tensor,
    words: Tensor,
) -> bool:
    """What the operation `grow` does, with the `select` of a backend; False when a candidate is NaN."""
    if len(scores) == len(kept.segments) and list(scores) == list(range(len(scores))):
        return _at_once(select, kept, scores, k, words)
    starts = kept.segments.starts.tolist()
    numbers = True
    for i, x in scores.items():
        here = slice(starts[i], starts[i + 1])
        words[here] = kept.words[here]
        if k[i]:
            chosen = words[here].clone().zero_()
            others = bitmaps.complement(kept.segment(i))
            numbers = select(x, others, k[i : i + 1], True, True, chosen) and numbers
            words[here] |= chosen
    return numbers


def _at_once(
    select: Callable[[Tensor, Bitmap, Tensor, bool, bool, Tensor], bool],
    kept: Bitmap,
    scores: Mapping[int, Tensor],
    k: Tensor,
    words: Tensor,
) -> bool:
    """All layers, in their order."""
    words.zero_()
    x = torch.cat(list(scores.values()))
    numbers = select(x, bitmaps.complement(kept), k, True, True, words) if any(k.tolist()) else True
    words |= kept.words
    return numbers
