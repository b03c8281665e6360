"""v_i <- (sum_j w_j,i) / (number of j whose support has i),   on the entries i of a mask

One pass for all models: a program owns a block of 1024 entries, keeps sums and counts in registers, and walks
the models in the order given through a table of addresses. Only values that the mask has are read.
"""

from collections.abc import Sequence

import torch
import triton.language as tl
from torch import Tensor

from sparsefl.kernels import tile
from sparsefl.kernels.layout import Bitmap, Packed
from sparsefl.kernels.registry import register


@tile.kernel
def _average_kernel(WORDS, T, RANKS, MODELS, V, num_models: tl.int64):
    b = tl.program_id(0).to(tl.int64)
    word, _, size = tile.block_row(T, b)
    mask = tile.load_words(WORDS, word, size)
    total = tl.zeros([tile.ROWS, tile.BITS], tl.float32)
    count = tl.zeros([tile.ROWS, tile.BITS], tl.float32)
    for j in range(num_models):
        support = tile.load_words(tl.load(MODELS + 3 * j).to(tl.pointer_type(tl.int64)), word, size)
        R = tl.load(MODELS + 3 * j + 1).to(tl.pointer_type(tl.int64))
        W = tl.load(MODELS + 3 * j + 2).to(tl.pointer_type(tl.float32))
        both = tile.to_bits(support & mask)
        total += tl.load(W + tl.load(R + b) + tile.packed(support), mask=both, other=0)
        count += both.to(tl.float32)
    v = tl.div_rn(total, tl.maximum(count, 1))
    tl.store(V + tl.load(RANKS + b) + tile.packed(mask), v, mask=tile.to_bits(mask))


_average = tile.Config("masked_average", _average_kernel, "*i64 *i64 *i64 *i64 *fp32 i64", {})


@register("masked_average", "triton")
def masked_average(mask: Bitmap, models: list[Packed], out: Tensor) -> None:
    tile.float32(out=out)
    table = tile.blocks(mask.segments, out.device)
    # [models, 3]; the models own what this points at
    held = [(m.bitmap.words.data_ptr(), tile.ranks(m.bitmap).data_ptr(), m.values.data_ptr()) for m in models]
    addresses = tile.send(torch.tensor(held, dtype=torch.int64), out.device)
    _average.launch(len(table), mask.words, table, tile.ranks(mask), addresses, out, len(models))


@register("mean", "triton")
def mean(tensors: Sequence[Tensor], out: Tensor) -> None:
    """By torch, which adds at the speed of memory."""
    out.copy_(tensors[0])
    for x in tensors[1:]:
        out.add_(x)
    out.div_(len(tensors))
