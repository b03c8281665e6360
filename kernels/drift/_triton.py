"""sum (a_i - b_i)^2 of every tensor, in two passes:   s = m^2 sum ((a_i - b_i) / m)^2 of a block, then sum s

m is the block's largest difference, so no square over- or underflows. float32 within a block of 1024 entries,
float64 over the blocks of a tensor, in order, on the host: the result is wanted there.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from sparsefl.kernels import tile
from sparsefl.kernels.layout import Packed
from sparsefl.kernels.registry import register


@triton.jit
def _dense(WORDS, RANKS, V, b, word, size):
    """float32 [16, 64]: values, 0 where nothing is stored."""
    words = tile.load_words(WORDS, word, size)
    return tl.load(V + tl.load(RANKS + b) + tile.packed(words), mask=tile.to_bits(words), other=0)


@tile.kernel
def _drift_kernel(A_WORDS, A_RANKS, A, B_WORDS, B_RANKS, B, T, S):
    b = tl.program_id(0).to(tl.int64)
    word, _, size = tile.block_row(T, b)
    d = tl.abs(_dense(A_WORDS, A_RANKS, A, b, word, size) - _dense(B_WORDS, B_RANKS, B, b, word, size))
    largest = tl.max(tl.max(d, 1), 0)
    scale = tl.where((largest > 0) & (largest < float("inf")), largest, 1.0)
    d = tl.div_rn(d, tl.zeros_like(d) + scale)
    scale = scale.to(tl.float64)
    tl.store(S + b, tl.sum(tl.sum(d * d, 1), 0).to(tl.float64) * scale * scale)


# Not fused: the compiler would make fma(d, d, other lane's d^2) of the sum, and two lanes that add the same
# numbers in turn would get different last bits, of which any may be stored.
_drift = tile.Config("drift", _drift_kernel, "*i64 *i64 *fp32 *i64 *i64 *fp32 *i64 *fp64", {}, fused=False)


@register("drift", "triton")
def drift(a: Packed, b: Packed, squares: Tensor) -> None:
    tile.float32(a=a.values)
    table = tile.blocks(a.bitmap.segments, a.values.device)
    partial = torch.empty(len(table), dtype=torch.float64, device=table.device)
    models = [x for m in (a, b) for x in (m.bitmap.words, tile.ranks(m.bitmap), m.values)]
    _drift.launch(len(table), *models, table, partial)
    segment = tile.blocks(a.bitmap.segments, squares.device)[:, 3]
    squares.index_add_(0, segment, partial.cpu())


@register("drift_of_runs", "triton")
def drift_of_runs(a: Tensor, b: Tensor, runs: Sequence[int], squares: Tensor) -> None:
    """In torch: a few thousand numbers, which are on the host."""
    d = (a.double() - b.double()).square_()
    for i, (lo, hi) in enumerate(zip(runs[::2], runs[1::2], strict=True)):
        squares[i] = d[lo:hi].sum()
