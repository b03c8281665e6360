"""Growth by a selection per layer, for backends without a kernel of its own."""

from collections.abc import Callable, Mapping

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
