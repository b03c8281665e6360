"""|w|_p and |w|_q of every layer:   (sum |w|^p)^(1/p) = m (sum (|w| / m)^p)^(1/p)   for m = max |w|

Sums of chunks of 16384 values: float32 along a lane (8 or 9 values), float64 across lanes and, on the host,
across chunks. p = 1/2, q = 1 needs no m unless a sum leaves float32; any other pair takes m first, by integer
maximum of the bits of |w|, which no order changes and where NaN is largest.
"""

import torch
import triton.language as tl
from torch import Tensor

from sparsefl.kernels import tile
from sparsefl.kernels.registry import register


@tile.kernel
def _max_kernel(W, C, M, ALIGNED: tl.constexpr):
    c = tl.program_id(0).to(tl.int64)
    lo, hi, segment = tl.load(C + 3 * c), tl.load(C + 3 * c + 1), tl.load(C + 3 * c + 2)
    m = tl.zeros([tile.RUN], tl.int32)
    for at in range(tile.run_start(lo), hi, tile.RUN):
        m = tl.maximum(m, tl.abs(tile.load_run(W, at, lo, hi, ALIGNED)).to(tl.int32, bitcast=True))
    tl.atomic_max(M + segment, tl.max(m, 0))


@tile.kernel
def _sums_kernel(W, C, M, S, num_chunks: tl.int64, p, q, SCALED: tl.constexpr, ALIGNED: tl.constexpr):
    c = tl.program_id(0).to(tl.int64)
    lo, hi, segment = tl.load(C + 3 * c), tl.load(C + 3 * c + 1), tl.load(C + 3 * c + 2)
    sum_p = tl.zeros([tile.RUN], tl.float32)
    sum_q = tl.zeros([tile.RUN], tl.float32)
    m = tl.load(M + segment).to(tl.float32, bitcast=True)
    m = tl.where(m == 0, 1.0, m)
    for at in range(tile.run_start(lo), hi, tile.RUN):
        w = tl.abs(tile.load_run(W, at, lo, hi, ALIGNED))
        if SCALED:
            w = tl.div_rn(w, tl.zeros_like(w) + m)
            log = tl.log2(tl.where(w == 0, 1.0, w))  # NaN stays
            sum_p += tl.where(w == 0, 0.0, tl.exp2(p * log))
            sum_q += tl.where(w == 0, 0.0, tl.exp2(q * log))
        else:
            sum_p += tl.sqrt_rn(w)
            sum_q += w
    tl.store(S + c, tl.sum(sum_p.to(tl.float64), 0))
    tl.store(S + num_chunks + c, tl.sum(sum_q.to(tl.float64), 0))


_max = {
    aligned: tile.Config("pq_norms", _max_kernel, "*fp32 *i64 *i32", {"ALIGNED": aligned}, tile.RUN_WARPS)
    for aligned in (True, False)
}
_sums = {
    (scaled, aligned): tile.Config(
        "pq_norms",
        _sums_kernel,
        "*fp32 *i64 *i32 *fp64 i64 fp32 fp32",
        {"SCALED": scaled, "ALIGNED": aligned},
        tile.RUN_WARPS,
    )
    for scaled in (True, False)
    for aligned in (True, False)
}


@register("pq_norms", "triton")
def pq_norms(values: Tensor, offsets: Tensor, p: float, q: float, norms: Tensor) -> None:
    tile.float32(values=values)
    chunks = tile.chunks(offsets)
    largest = torch.zeros(len(norms), dtype=torch.int32, device=values.device)
    if (p, q) == (0.5, 1.0):
        sums = _sum(values, chunks, largest, p, q, scaled=False)
        norms[:, 0], norms[:, 1] = sums[0].square(), sums[1]
        if norms.isfinite().all():
            return
    _max[tile.aligned(values)].launch(len(chunks), values, tile.send(chunks, values.device), largest)
    sums = _sum(values, chunks, largest, p, q, scaled=True)
    scale = largest.view(torch.float32).cpu().double()
    norms[:, 0], norms[:, 1] = scale * sums[0] ** (1 / p), scale * sums[1] ** (1 / q)


def _sum(values: Tensor, chunks: Tensor, largest: Tensor, p: float, q: float, *, scaled: bool) -> Tensor:
    """float64 [2, L] on the CPU."""
    partial = torch.empty(2, len(chunks), dtype=torch.float64, device=values.device)
    config = _sums[scaled, tile.aligned(values)]
    config.launch(len(chunks), values, tile.send(chunks, values.device), largest, partial, len(chunks), p, q)
    total = torch.zeros(2, len(largest), dtype=torch.float64)
    return total.index_add_(1, chunks[:, 2], partial.cpu())
