"""Masks as short as their density allows: a string of n bits, c of them ones, takes n H(c / n) bits.

    H(p) = -p log2 p - (1 - p) log2 (1 - p),   nothing where c is 0 or n

A tensor is one string: which entries are stored. With a mask `known` to both sides it is two: which of the
known entries were dropped, and which of the others were grown, each with a density of its own.

The code is rANS (Duda 2013) over bytes of 8 bits that are taken as independent; `_reference.py` says every
step. Counts of ones are no part of it: who decodes has them from elsewhere, and a code that does not give
exactly those is refused.
"""

from math import log2
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sparsefl.kernels import bitmap as bitmaps
from sparsefl.kernels import memory, registry
from sparsefl.kernels.layout import Bitmap, Segments

_call = registry.bind(__name__)
_MOST = 2**32 - 1  # entries of a tensor: p = c / n has 32 bits after the point


class Flips(NamedTuple):
    """int64 [L] on the CPU: how many entries of each tensor were dropped and grown since `known`."""

    dropped: Tensor
    grown: Tensor


def flips(bitmap: Bitmap, known: Bitmap | None = None) -> Flips:
    """From `known`, or from a mask without entries, to `bitmap`."""
    if known is None:
        return Flips(bitmap.counts.new_zeros(len(bitmap.segments)), bitmap.counts)
    _same_segments(bitmap.segments, known)
    a, b = known.words, bitmap.words
    gone, come = (bitmaps.make(words, bitmap.segments) for words in (a & ~b, b & ~a))
    return Flips(gone.counts, come.counts)


def entropy(flips: Flips, segments: Segments, known: Bitmap | None = None) -> float:
    """n H(c / n) of all strings together, in bits: what a code cannot beat, and nearly reaches."""
    return sum(_information(ones, bits) for ones, bits in _strings(flips, segments, known))


def encode(bitmap: Bitmap, known: Bitmap | None = None) -> NDArray[np.uint8]:
    """The code of `bitmap`, a whole number of 4 bytes."""
    _check(bitmap.segments, known)
    counts = flips(bitmap, known)
    raw = sum(-(-bits // 8) for _, bits in _strings(counts, bitmap.segments, known))
    out = np.empty(raw + raw // 1024 + 16 * len(bitmap.segments) + 64, dtype=np.uint8)
    size = _call("mask_encode", bitmap.words.device, bitmap, known, counts, out)
    assert size > 0, f"the code of {raw} bytes did not fit into {out.size}"
    return out[:size]


def decode(code: NDArray[np.uint8], segments: Segments, flips: Flips, known: Bitmap | None = None) -> Bitmap:
    """The mask again, or a ValueError for a code of anything else. It may come from anybody."""
    _check(segments, known)
    for ones, bits in _strings(flips, segments, known):
        if not 0 <= ones <= bits:
            raise ValueError(f"expected from 0 to {bits} ones in a string of {bits} bits, got {ones}")
    words = memory.plain(segments.num_words, torch.int64)
    if not _call("mask_decode", words.device, code, segments, known, flips, words):
        raise ValueError("expected the code of a mask with exactly the counts announced")
    return bitmaps.make(words, segments)


def _strings(flips: Flips, segments: Segments, known: Bitmap | None) -> list[tuple[int, int]]:
    """(ones, bits) of every string, in the order of the code."""
    grown = flips.grown.tolist()
    if known is None:
        return list(zip(grown, segments.sizes, strict=True))
    each = zip(flips.dropped.tolist(), grown, known.stored, segments.sizes, strict=True)
    return [pair for d, g, k, n in each for pair in ((d, k), (g, n - k))]


def _information(ones: int, bits: int) -> float:
    if not 0 < ones < bits:
        return 0.0
    return -sum(n * log2(n / bits) for n in (ones, bits - ones))


def _check(segments: Segments, known: Bitmap | None) -> None:
    if max(segments.sizes, default=0) > _MOST:
        raise ValueError(f"expected tensors of at most {_MOST} entries, got {max(segments.sizes)}")
    if known is not None:
        _same_segments(segments, known)


def _same_segments(segments: Segments, known: Bitmap) -> None:
    if segments.sizes != known.segments.sizes:
        raise ValueError(f"expected a known mask of sizes {segments.sizes}, got {known.segments.sizes}")
