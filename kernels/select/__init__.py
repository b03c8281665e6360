"""Exact selection:   the k_l smallest (or largest) |x| of every layer l, ties by position, as a bitmap

By histogram of the bits of |x|, never by sorting. Candidates are the entries that a bitmap stores; x holds
one value a candidate (packed), or one a dense entry (`dense=True`: scores of weights that are not stored).
Of equal |x| the earlier ones are taken first, for smallest and largest alike. NaN has no place in an order:
refused.
"""

import torch
from torch import Tensor

from sparsefl.kernels import bitmap as bitmaps
from sparsefl.kernels import checks, memory, registry
from sparsefl.kernels.layout import Bitmap

_call = registry.bind(__name__)


def select(x: Tensor, candidates: Bitmap, k: Tensor, *, largest: bool = False, dense: bool = False) -> Bitmap:
    """The chosen entries: a subset of `candidates` with exactly k[l] entries in segment l."""
    checks.flat(x=x)
    checks.same_device(x=x, candidates=candidates.words)
    checks.dtype(torch.int64, k=k)
    if dense:
        checks.length(candidates.segments.numel, "scores, one a dense entry", x=x)
    else:
        checks.length(candidates.nnz, "values, one a candidate", x=x)
    k = k.cpu().contiguous()
    if k.shape != candidates.counts.shape or (k < 0).any() or (k > candidates.counts).any():
        raise ValueError(f"expected 0 <= k <= {candidates.counts.tolist()} for each tensor, got {k.tolist()}")
    words = memory.plain(candidates.words.shape, torch.int64, candidates.words.device).zero_()
    if x.numel() and k.any():
        if not _call("select", x.device, x, candidates, k, largest, dense, words):
            raise ValueError("expected numbers to select from, got NaN")
    return bitmaps.make(words, candidates.segments)
