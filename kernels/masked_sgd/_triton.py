"""d <- s g + lambda w,   u <- mu u + d,   w <- w - eta (d + mu u  if Nesterov, else u)

Packed g: a flat stream, 128 bits at a time; u is not touched without momentum.
Dense g: one program a block of the bitmap, g read at the entries that are stored, w and u at their ranks.
"""

import triton
import triton.language as tl
from torch import Tensor

from sparsefl.kernels import tile
from sparsefl.kernels.layout import Bitmap
from sparsefl.kernels.registry import register

_RULES = ("plain", "momentum", "nesterov")


@triton.jit
def _step(W, U, g, i, inside, lr, momentum, weight_decay, scale, RULE: tl.constexpr):
    """inside: bool like i, or None for all of them."""
    w = tl.load(W + i, mask=inside)
    d = scale * g + weight_decay * w
    if RULE != "plain":
        u = momentum * tl.load(U + i, mask=inside) + d
        tl.store(U + i, u, mask=inside)
        d = d + momentum * u if RULE == "nesterov" else u
    tl.store(W + i, w - lr * d, mask=inside)


@tile.kernel
def _stream_kernel(
    W, G, U, n: tl.int64, lr, momentum, weight_decay, scale, RULE: tl.constexpr, ALIGNED: tl.constexpr
):
    start = tl.program_id(0).to(tl.int64) * tile.RUN
    i = tl.arange(0, tile.RUN)
    W, G, U = W + start, G + start, U + start
    if ALIGNED:
        W, G, U = tl.multiple_of(W, 16), tl.multiple_of(G, 16), tl.multiple_of(U, 16)
    if start + tile.RUN <= n:  # no mask, or the vectors are lost
        _step(W, U, tl.load(G + i), i, None, lr, momentum, weight_decay, scale, RULE)
    else:
        inside = i < n - start
        g = tl.load(G + i, mask=inside, other=0)
        _step(W, U, g, i, inside, lr, momentum, weight_decay, scale, RULE)


@tile.kernel
def _gather_kernel(W, G, U, WORDS, T, RANKS, lr, momentum, weight_decay, scale, RULE: tl.constexpr):
    b = tl.program_id(0).to(tl.int64)
    word, dense, size = tile.block_row(T, b)
    words = tile.load_words(WORDS, word, size)
    stored = tile.to_bits(words)
    g = tl.load(G + dense + tile.lanes(), mask=stored, other=0)
    rank = tl.load(RANKS + b)
    _step(W + rank, U + rank, g, tile.packed(words), stored, lr, momentum, weight_decay, scale, RULE)


_stream = {
    (rule, aligned): tile.Config(
        "masked_sgd_",
        _stream_kernel,
        "*fp32 *fp32 *fp32 i64 fp32 fp32 fp32 fp32",
        {"RULE": rule, "ALIGNED": aligned},
        tile.RUN_WARPS,
    )
    for rule in _RULES
    for aligned in (True, False)
}
_gather = {
    rule: tile.Config(
        "masked_sgd_", _gather_kernel, "*fp32 *fp32 *fp32 *i64 *i64 *i64 fp32 fp32 fp32 fp32", {"RULE": rule}
    )
    for rule in _RULES
}


@register("masked_sgd_", "triton")
def masked_sgd_(
    w: Tensor,
    g: Tensor,
    u: Tensor | None,
    lr: float,
    momentum: float,
    weight_decay: float,
    nesterov: bool,
    scale: float,
    through: Bitmap | None,
) -> None:
    tile.float32(w=w)
    rule = "plain" if u is None else "nesterov" if nesterov else "momentum"
    u = w if u is None else u  # "plain" does not look at it
    numbers = lr, momentum, weight_decay, scale
    if through is None:
        config = _stream[rule, tile.aligned(w, g, u)]
        config.launch(triton.cdiv(w.numel(), tile.RUN.value), w, g, u, w.numel(), *numbers)
    else:
        table = tile.blocks(through.segments, w.device)
        _gather[rule].launch(len(table), w, g, u, through.words, table, tile.ranks(through), *numbers)
