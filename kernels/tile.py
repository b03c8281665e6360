"""What the Triton kernels share: tiles of a bitmap, tables of blocks and chunks, launches with fixed types.

A block is 16 words of one segment, seen as [16 words, 64 bits] = 1024 entries. Entry (w, b) has packed index

    ranks[block] + sum_{v < w} popcount(word_v) + popcount(word_w & (2^b - 1))

where `ranks` is the rank directory, kept with its bitmap. A chunk is up to 16384 packed values of a segment.
A table of blocks or chunks is int64, one row a program. Every launch goes through a `Config`, and `aot`
compiles each of them for an RTX 4090 without having one.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from sparsefl.kernels.layout import WORD, Bitmap, Segments

ROWS = tl.constexpr(16)  # words of a block
BITS = tl.constexpr(WORD)
FIELDS = tl.constexpr(5)  # of a row in the block table: word, dense, size, segment, first
RUN = tl.constexpr(2048)  # values that a program streams at a time,
RUN_WARPS = 8  # so 8 a thread: two 128-bit loads
BLOCK, CHUNK = ROWS.value * WORD, 8 * RUN.value
COUNTED = tl.constexpr(64)  # blocks that one program counts

CONFIGS: list["Config"] = []
_TYPES = {
    torch.float32: "*fp32",
    torch.float64: "*fp64",
    torch.int64: "*i64",
    torch.int32: "*i32",
    torch.uint8: "*u8",
    int: "i64",
    float: "fp32",
}


def kernel(function: Callable) -> Callable:
    """triton.jit without specialisation on values: one `Config` is one binary, the one that `aot` sees."""
    parameters = inspect.signature(function).parameters.values()
    at_run_time = [x.name for x in parameters if x.annotation is not tl.constexpr]
    return triton.jit(function, do_not_specialize=at_run_time)


@dataclass(frozen=True)
class Config:
    """A kernel with its argument types and constants: what is launched, and what `aot` compiles."""

    op: str
    kernel: Any
    types: str  # of the run-time arguments: "*fp32 i64"
    constants: dict[str, Any]
    num_warps: int = 4
    fused: bool = True  # a product and a sum may be rounded once
    registers: int | None = None  # per thread, at most; None: as the assembler finds best

    def __post_init__(self) -> None:
        CONFIGS.append(self)

    @property
    def options(self) -> dict[str, Any]:
        most = {} if self.registers is None else {"maxnreg": self.registers}
        return {"num_warps": self.num_warps, "enable_fp_fusion": self.fused} | most

    def launch(self, programs: int, *args: Any) -> None:
        given = " ".join(_TYPES[x.dtype if isinstance(x, Tensor) else type(x)] for x in args)
        assert given == self.types, f"{self.op} is compiled for {self.types}, got {given}"
        if programs:
            self.run(programs, *args)

    def run(self, programs: int, *args: Any) -> None:
        """By Triton. The virtual card of the tests takes this place."""
        with torch.cuda.device_of(args[0]):  # Triton launches on the current device
            self.kernel[(programs,)](*args, **self.constants, **self.options)


def float32(**tensors: Tensor) -> None:
    wrong = {name: x.dtype for name, x in tensors.items() if x.dtype != torch.float32}
    if wrong:
        hint = "other float types run with use_backend('reference')"
        raise ValueError(f"triton kernels take float32, got {wrong}; {hint}")


def aligned(*tensors: Tensor) -> bool:
    """Can all of them be loaded 128 bits at a time?"""
    return all(x.data_ptr() % 16 == 0 for x in tensors)


def aligned_dense(dense: Tensor, segments: Segments) -> bool:
    """Return whether a dense form is aligned: every segment has to start at a multiple of 16 entries too."""
    return aligned(dense) and all(n % 16 == 0 for n in segments.sizes)


def send(x: Tensor, device: torch.device) -> Tensor:
    """A CPU tensor on `device`, without waiting for the work that is queued there."""
    return x.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else x


# ---- tables (host) ----


@lru_cache(maxsize=128)
def blocks(segments: Segments, device: torch.device) -> Tensor:
    """int64 [blocks, 5]: first word, first dense entry, entries, segment, the segment's first block."""
    segment, inside, first = _split(torch.tensor(segments.sizes, dtype=torch.int64), BLOCK)
    word = segments.starts[segment] + inside // WORD
    size = (segments.dense[segment + 1] - segments.dense[segment] - inside).clamp(max=BLOCK)
    return torch.stack([word, segments.dense[segment] + inside, size, segment, first], 1).to(device)


def chunks(offsets: Tensor) -> Tensor:
    """int64 [chunks, 3] on the CPU: first value, end, segment. Only the offsets decide, so sums repeat."""
    segment, inside, _ = _split(offsets.diff(), CHUNK)
    lo = offsets[segment] + inside
    return torch.stack([lo, (lo + CHUNK).minimum(offsets[segment + 1]), segment], 1)


def ranks(bitmap: Bitmap) -> Tensor:
    """int64 [blocks]: packed index of the first stored entry of each block (or where it would be)."""
    return bitmap.derived.of("triton_ranks", lambda: _ranks(bitmap))


def counts(words: Tensor, table: Tensor) -> Tensor:
    """int64 [blocks]: stored entries of each block."""
    out = torch.empty(len(table), dtype=torch.int64, device=words.device)
    _count.launch(triton.cdiv(len(table), COUNTED.value), words, table, out, len(table))
    return out


def _ranks(bitmap: Bitmap) -> Tensor:
    per_block = counts(bitmap.words, blocks(bitmap.segments, bitmap.words.device))
    return per_block.cumsum(0) - per_block


def _split(sizes: Tensor, step: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return each part's segment, its first entry, and its segment's first part: `step` entries at most."""
    parts = -(-sizes // step)
    segment = torch.repeat_interleave(torch.arange(len(sizes)), parts)
    first = (parts.cumsum(0) - parts)[segment]
    return segment, (torch.arange(len(segment)) - first) * step, first


# ---- device functions ----


@triton.jit
def popcount(x):
    """Shift and mask: LLVM makes the hardware instruction of it."""
    x = x.to(tl.uint64)
    x = x - ((x >> 1) & 0x5555555555555555)
    x = (x & 0x3333333333333333) + ((x >> 2) & 0x3333333333333333)
    x = (x + (x >> 4)) & 0x0F0F0F0F0F0F0F0F
    return ((x * 0x0101010101010101) >> 56).to(tl.int32)


@triton.jit
def block_row(T, b):
    """First word, first dense entry and number of entries of block b."""
    return tl.load(T + b * FIELDS), tl.load(T + b * FIELDS + 1), tl.load(T + b * FIELDS + 2).to(tl.int32)


@triton.jit
def load_words(WORDS, word, size):
    """int64 [16]: a block's words, 0 after the end of its segment."""
    row = tl.arange(0, ROWS)
    return tl.load(WORDS + word + row, mask=row * BITS < size, other=0)


@triton.jit
def store_words(WORDS, word, size, x):
    row = tl.arange(0, ROWS)
    tl.store(WORDS + word + row, x, mask=row * BITS < size)


@triton.jit
def lanes():
    """int32 [16, 64]: every entry's place in its block."""
    return tl.arange(0, ROWS)[:, None] * BITS + tl.arange(0, BITS)[None, :]


@triton.jit
def dense_lanes(D, dense, size, ALIGNED: tl.constexpr):
    """[16, 64]: pointers to a block's dense entries, and which of them exist."""
    D += dense
    if ALIGNED:
        D, size = tl.multiple_of(D, 16), size // 16 * 16  # a hint on a function's argument would be lost
    return D + lanes(), lanes() < size


@triton.jit
def to_bits(words):
    """bool [16, 64] of int64 [16]"""
    return ((words[:, None] >> tl.arange(0, BITS).to(tl.int64)[None, :]) & 1) != 0


@triton.jit
def to_words(flags):
    """int64 [16] of bool [16, 64]: sums of distinct powers of two."""
    return tl.sum(flags.to(tl.int64) << tl.arange(0, BITS).to(tl.int64)[None, :], 1)


@triton.jit
def packed(words):
    """int32 [16, 64]: how many bits of the block come before each lane."""
    count = popcount(words)
    before = tl.cumsum(count, 0) - count
    below = (tl.full([BITS], 1, tl.int64) << tl.arange(0, BITS).to(tl.int64)) - 1
    return before[:, None] + popcount(words[:, None] & below[None, :])


@triton.jit
def load_run(X, at, lo, hi, ALIGNED: tl.constexpr):
    """X[at : at + RUN], 0 outside lo:hi. No mask unless needed: a mask per lane loses 128-bit loads."""
    i = tl.arange(0, RUN)
    X += at
    if ALIGNED:
        X = tl.multiple_of(X, 16)
    if (at >= lo) & (at + RUN <= hi):
        x = tl.load(X + i)
    else:
        x = tl.load(X + i, mask=within(at, lo, hi), other=0)
    return x


@triton.jit
def within(at, lo, hi):
    """bool [RUN]: which of at, at + 1, ... are in lo:hi"""
    i = tl.arange(0, RUN)
    return (i >= (lo - at).to(tl.int32)) & (i < (hi - at).to(tl.int32))


@triton.jit
def run_start(lo):
    """Where to start reading for lo: the last multiple of 16 before it."""
    return lo // 16 * 16


@kernel
def _count_kernel(WORDS, T, N, num_blocks: tl.int64):
    b = tl.program_id(0).to(tl.int64) * COUNTED + tl.arange(0, COUNTED)
    inside = b < num_blocks
    word = tl.load(T + b * FIELDS, mask=inside, other=0)
    size = tl.load(T + b * FIELDS + 2, mask=inside, other=0)
    row = tl.arange(0, ROWS)[None, :]
    words = tl.load(WORDS + word[:, None] + row, mask=row * BITS < size[:, None], other=0)  # [blocks, 16]
    tl.store(N + b, tl.sum(popcount(words), 1).to(tl.int64), mask=inside)


_count = Config("bitmap_count", _count_kernel, "*i64 *i64 *i64 i64", {})


@kernel
def _pack_kernel(D, WORDS, T, RANKS, V):
    b = tl.program_id(0).to(tl.int64)
    word, dense, size = block_row(T, b)
    words = load_words(WORDS, word, size)
    stored = to_bits(words)
    v = tl.load(D + dense + lanes(), mask=stored, other=0)
    tl.store(V + tl.load(RANKS + b) + packed(words), v, mask=stored)


@kernel
def _unpack_kernel(V, WORDS, T, RANKS, D, ALIGNED: tl.constexpr):
    b = tl.program_id(0).to(tl.int64)
    word, dense, size = block_row(T, b)
    words = load_words(WORDS, word, size)
    v = tl.load(V + tl.load(RANKS + b) + packed(words), mask=to_bits(words), other=0)
    D, inside = dense_lanes(D, dense, size, ALIGNED)
    tl.store(D, v, mask=inside)


_FLOATS, _INDICES = "*fp32 *i64 *i64 *i64 *fp32", "*i32 *i64 *i64 *i64 *i32"
_pack = {
    torch.float32: Config("pack", _pack_kernel, _FLOATS, {}),
    torch.int32: Config("bitmap_transpose", _pack_kernel, _INDICES, {}),
}
_unpack = {
    (dtype, aligned): Config(op, _unpack_kernel, types, {"ALIGNED": aligned})
    for dtype, op, types in ((torch.float32, "unpack", _FLOATS), (torch.int32, "bitmap_transpose", _INDICES))
    for aligned in (True, False)
}


def pack(dense: Tensor, bitmap: Bitmap, out: Tensor) -> None:
    """packed[rank] = dense[entry], one program per block; float32, or int32 (indices of a transpose)."""
    table = blocks(bitmap.segments, dense.device)
    _pack[dense.dtype].launch(len(table), dense, bitmap.words, table, ranks(bitmap), out)


def unpack(values: Tensor, bitmap: Bitmap, out: Tensor) -> None:
    """dense[entry] = packed[rank], 0 where nothing is stored; float32 or int32."""
    table = blocks(bitmap.segments, values.device)
    config = _unpack[values.dtype, aligned_dense(out, bitmap.segments)]
    config.launch(len(table), values, bitmap.words, table, ranks(bitmap), out)
