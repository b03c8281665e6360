"""The k_l smallest (largest) |x| of every segment, ties by position, by radix selection.

key = bits of |x| (for the largest: their complement), int32 ordered like |x|. 8 bits a pass, from the top:

    histogram  h[l, d] <- how many keys of segment l start with prefix_l and go on with digit d
    descend    d <- first digit whose running count reaches k_l
               prefix_l <- 256 prefix_l + d,   k_l <- k_l - keys below

After 4 passes prefix_l is the k-th key itself, and k_l how many of those equal to it are taken:

    ties       keys equal to prefix_l in each block of 1024 entries; running sum: how many come before
    choose     bits of key < prefix_l, and of the first k_l with key = prefix_l

8 bits, because the histogram of a warp costs a population count for every 32 bins and value.
"""

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from sparsefl.kernels import tile
from sparsefl.kernels.layout import Bitmap
from sparsefl.kernels.registry import register
from sparsefl.kernels.select import _by_layer

BINS = tl.constexpr(256)
_SHIFTS = (24, 16, 8, 0)
_GROUP = tl.constexpr(4)  # segments that one program descends


@triton.jit
def _key(x, LARGEST: tl.constexpr):
    key = x.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    return key ^ 0x7FFFFFFF if LARGEST else key


@tile.kernel
def _histogram_kernel(X, C, PREFIX, H, BAD, shift: tl.int64, LARGEST: tl.constexpr, ALIGNED: tl.constexpr):
    c = tl.program_id(0).to(tl.int64)
    lo, hi, segment = tl.load(C + 3 * c), tl.load(C + 3 * c + 1), tl.load(C + 3 * c + 2)
    prefix = tl.load(PREFIX + segment)
    h = tl.zeros([BINS], tl.int32)
    bad = tl.zeros([tile.RUN], tl.int32)
    for at in range(tile.run_start(lo), hi, tile.RUN):
        x = tile.load_run(X, at, lo, hi, ALIGNED)
        bad = tl.maximum(bad, tl.where(x != x, 2, (tl.abs(x) == float("inf")).to(tl.int32)))
        key = _key(x, LARGEST) >> shift.to(tl.int32)
        h += tl.histogram(key & (BINS - 1), BINS, mask=tile.within(at, lo, hi) & (key >> 8 == prefix))
    tl.atomic_max(BAD, tl.max(bad, 0))
    d = tl.arange(0, BINS)
    tl.atomic_add(H + segment * BINS + d, h.to(tl.int64), mask=h > 0)


@tile.kernel
def _descend_kernel(H, PREFIX, K, num_segments: tl.int64):
    segment = tl.program_id(0).to(tl.int64) * _GROUP + tl.arange(0, _GROUP)
    inside = segment < num_segments
    d = tl.arange(0, BINS)[None, :]
    h = tl.load(H + segment[:, None] * BINS + d, mask=inside[:, None], other=0)  # [segments, 256]
    k = tl.load(K + segment, mask=inside, other=0)
    short = (tl.cumsum(h, 1) < k[:, None]).to(tl.int64)
    prefix = tl.load(PREFIX + segment, mask=inside, other=0)
    tl.store(PREFIX + segment, prefix * BINS + tl.sum(short, 1).to(tl.int32), mask=inside)
    tl.store(K + segment, k - tl.sum(h * short, 1), mask=inside)


@triton.jit
def _load_keys(X, WORDS, T, RANKS, PREFIX, b, word, size, LARGEST: tl.constexpr):
    """bool [16, 64]: which candidates come before the k-th key, and which equal it."""
    words = tile.load_words(WORDS, word, size)
    stored = tile.to_bits(words)
    key = _key(tl.load(X + tl.load(RANKS + b) + tile.packed(words), mask=stored, other=0), LARGEST)
    prefix = tl.load(PREFIX + tl.load(T + b * tile.FIELDS + 3))
    return stored & (key < prefix), stored & (key == prefix)


@tile.kernel
def _ties_kernel(X, WORDS, T, RANKS, PREFIX, TIES, LARGEST: tl.constexpr):
    b = tl.program_id(0).to(tl.int64)
    word, _, size = tile.block_row(T, b)
    _, ties = _load_keys(X, WORDS, T, RANKS, PREFIX, b, word, size, LARGEST)
    tl.store(TIES + b, tl.sum(tl.sum(ties.to(tl.int64), 1), 0))


@tile.kernel
def _choose_kernel(X, WORDS, T, RANKS, PREFIX, TIES, UP_TO, K, OUT, LARGEST: tl.constexpr):
    b = tl.program_id(0).to(tl.int64)
    word, _, size = tile.block_row(T, b)
    below, ties = _load_keys(X, WORDS, T, RANKS, PREFIX, b, word, size, LARGEST)
    segment, first = tl.load(T + b * tile.FIELDS + 3), tl.load(T + b * tile.FIELDS + 4)
    # ties in earlier blocks of the segment; UP_TO counts those of a block too
    before = (tl.load(UP_TO + b) - tl.load(TIES + b)) - (tl.load(UP_TO + first) - tl.load(TIES + first))
    left = tl.maximum(tl.load(K + segment) - before, 0)
    taken = ties & (tile.packed(tile.to_words(ties)) < left)
    tile.store_words(OUT, word, size, tile.to_words(below | taken))


_histogram = {
    (largest, aligned): tile.Config(
        "select",
        _histogram_kernel,
        "*fp32 *i64 *i32 *i64 *i32 i64",
        {"LARGEST": largest, "ALIGNED": aligned},
        tile.RUN_WARPS,
    )
    for largest in (True, False)
    for aligned in (True, False)
}
_descend = tile.Config("select", _descend_kernel, "*i64 *i32 *i64 i64", {})
_TILE = "*fp32 *i64 *i64 *i64 *i32 *i64"
_ties = {large: tile.Config("select", _ties_kernel, _TILE, {"LARGEST": large}) for large in (True, False)}
_choose = {
    large: tile.Config("select", _choose_kernel, _TILE + " *i64 *i64 *i64", {"LARGEST": large})
    for large in (True, False)
}


@register("select", "triton")
def select(x: Tensor, candidates: Bitmap, k: Tensor, largest: bool, dense: bool, words: Tensor) -> Tensor:
    """Writes the chosen bits into words; 2 if a candidate is NaN, as if it were the largest, 1 if one is
    infinite, else 0. Who asks waits."""
    tile.float32(x=x)
    if dense:
        x, scores = x.new_empty(candidates.nnz), x
        tile.pack(scores, candidates, x)
    segments, bins = len(k), len(_SHIFTS) * BINS.value
    zeros = torch.zeros(segments * (bins + 1) + 1, dtype=torch.int64, device=x.device)
    histogram, numbers = zeros[: segments * bins].view(len(_SHIFTS), segments, -1), zeros[segments * bins :]
    prefix, bad = numbers.view(torch.int32)[:segments], numbers.view(torch.int32)[-1:]
    k = tile.send(k.clone(), x.device)  # a copy: it counts down
    _kth_keys(x, candidates.offsets, k, prefix, bad, histogram, largest)
    table = tile.blocks(candidates.segments, x.device)
    ties = torch.empty(len(table), dtype=torch.int64, device=x.device)
    keys = x, candidates.words, table, tile.ranks(candidates), prefix
    _ties[largest].launch(len(table), *keys, ties)
    _choose[largest].launch(len(table), *keys, ties, ties.cumsum(0), k, words)
    return bad


@register("grow", "triton")
def grow(kept: Bitmap, scores: Mapping[int, Tensor], k: Tensor, words: Tensor) -> bool:
    """False when a candidate is NaN."""
    return _by_layer.grow(_checked, kept, scores, k, words)


def _checked(*given: Any) -> bool:
    """`select`, and a look at what it says."""
    return select(*given).item() < 2


def _kth_keys(
    x: Tensor, offsets: Tensor, k: Tensor, prefix: Tensor, bad: Tensor, histogram: Tensor, largest: bool
) -> None:
    """In place: prefix <- the k-th key of each segment, k <- how many like it to take, bad <- as `select`.

    histogram: 0, [passes, segments, BINS]
    """
    chunks = tile.send(tile.chunks(offsets), x.device)
    config = _histogram[largest, tile.aligned(x)]
    for shift, h in zip(_SHIFTS, histogram, strict=True):
        config.launch(len(chunks), x, chunks, prefix, h, bad, shift)
        _descend.launch(triton.cdiv(len(k), _GROUP.value), h, prefix, k, len(k))
