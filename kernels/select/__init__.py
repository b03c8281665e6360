"""Exact selection:   the k_l smallest (or largest) |x| of every layer l, ties by position, as a bitmap

select   out of the entries that a bitmap stores
drop     the same, and a bitmap without them
grow     out of those that it does not store, by dense scores: a layer at a time, or all at once

By histogram of the bits of |x|, never by sorting. Candidates are the entries that a bitmap stores; x holds
one value a candidate (packed), or one a dense entry (`dense=True`: scores of weights that are not stored).
Of equal |x| the earlier ones are taken first, for smallest and largest alike. NaN has no place in an order:
refused.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from sparsefl.kernels import bitmap as bitmaps
from sparsefl.kernels import checks, memory, registry
from sparsefl.kernels.layout import Bitmap

_call = registry.bind(__name__)


def select(
    x: Tensor,
    candidates: Bitmap,
    k: Tensor,
    *,
    largest: bool = False,
    dense: bool = False,
    later: list[Tensor] | None = None,
) -> Bitmap:
    """The chosen entries: a subset of `candidates` with exactly k[l] entries in segment l.

    later  on a GPU, takes a number instead of a ValueError, int32 [1]: 2 if a candidate is NaN (it counts as
           the largest), 1 if one is infinite, else 0. Who asks several things waits once
    """
    return bitmaps.counted(_chosen(x, candidates, k, largest, dense, later), candidates.segments, k.tolist())


def drop(x: Tensor, stored: Bitmap, k: Tensor, later: list[Tensor] | None = None) -> Bitmap:
    """`stored` without the k[l] smallest |x| of every segment l; x is packed. `later`: as `select`'s."""
    words = _chosen(x, stored, k, largest=False, dense=False, later=later)
    words.bitwise_xor_(stored.words)  # they are a subset
    left = [d - n for d, n in zip(stored.stored, k.tolist(), strict=True)]
    return bitmaps.counted(words, stored.segments, left)


def grow(kept: Bitmap, scores: Mapping[int, Tensor], k: Tensor, words: Tensor) -> None:
    """Writes `kept` and the k[l] largest |scores[l]| outside it into `words`, for the segments l in `scores`.

    scores  of every dense entry of a segment, flat, by its number
    k       int64 [L] on the CPU
    words   those of a whole bitmap; other segments are left alone
    """
    checks.dtype(torch.int64, k=k, words=words)
    checks.contiguous(k=k, words=words)
    checks.same_device(kept=kept.words, words=words)
    checks.length(len(kept.segments), "numbers, one per tensor", k=k)
    checks.length(kept.segments.num_words, "words", words=words)
    wanted = k.tolist()
    for i, x in scores.items():
        checks.flat(scores=x)
        checks.same_device(kept=kept.words, scores=x)
        size, stored = kept.segments.sizes[i], kept.stored[i]
        checks.length(size, "scores, one a dense entry", x=x)
        if not _fits(wanted[i], size - stored):
            raise ValueError(f"expected 0 <= k <= {size - stored} of tensor {i}, got {wanted[i]}")
    if not _call("grow", words.device, kept, scores, k, words):
        raise ValueError("expected numbers to select from, got NaN")


def _chosen(
    x: Tensor, candidates: Bitmap, k: Tensor, largest: bool, dense: bool, later: list[Tensor] | None = None
) -> Tensor:
    """The words of `select`."""
    checks.flat(x=x)
    checks.same_device(x=x, candidates=candidates.words)
    checks.dtype(torch.int64, k=k)
    if dense:
        checks.length(candidates.segments.numel, "scores, one a dense entry", x=x)
    else:
        checks.length(candidates.nnz, "values, one a candidate", x=x)
    k = k.cpu().contiguous()
    wanted, most = k.view(-1).tolist(), candidates.stored
    if k.dim() != 1 or len(wanted) != len(most) or not all(map(_fits, wanted, most)):
        raise ValueError(f"expected 0 <= k <= {list(most)} for each tensor, got {k.tolist()}")
    words = memory.plain(candidates.words.shape, torch.int64, candidates.words.device)
    asked = x.numel() and any(wanted)
    if not asked or words.device.type == "cpu":  # kernels of GPUs write every word
        words.zero_()
    if asked:
        fine = _call("select", x.device, x, candidates, k, largest, dense, words)
        if later is not None and isinstance(fine, Tensor):
            later.append(fine)
        elif fine.item() == 2 if isinstance(fine, Tensor) else not fine:
            raise ValueError("expected numbers to select from, got NaN")
    return words


def _fits(k: int, most: int) -> bool:
    return 0 <= k <= most
