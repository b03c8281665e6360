"""What the Triton kernels share: tiles of a bitmap, tables of blocks and chunks, and launches that know their types.

A block is 16 words of one segment, seen as [16 words, 64 bits] = 1024 entries. Its stored entries are packed from
`ranks[block]` on (the rank directory), entry (w, b) at

    ranks[block] + sum_{v < w} popcount(word_v) + popcount(word_w & (2^b - 1))

A chunk is a run of at most 16384 packed values of one segment. Both tables are int64, one row a program.
Every launch goes through a `Config`; `kernels.aot` compiles each of them for an RTX 4090 without having one.
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

from kernels.layout import WORD, Bitmap, Segments

ROWS = tl.constexpr(16)  # words of a block
BITS = tl.constexpr(WORD)
FIELDS = tl.constexpr(5)  # of a row in the block table: word, dense, size, segment, first
RUN = tl.constexpr(2048)  # values that a chunk loads at a time
BLOCK, CHUNK = ROWS.value * WORD, 8 * RUN.value
COUNTED = tl.constexpr(64)  # blocks that one program counts

CONFIGS: list["Config"] = []
_TYPES = {torch.float32: "*fp32", torch.float64: "*fp64", torch.int64: "*i64", torch.int32: "*i32", torch.uint8: "*u8"}
_SCALARS = {int: "i64", float: "fp32"}


def kernel(function: Callable) -> Callable:
    """triton.jit without specialisation on values, so that one `Config` is one binary: the one `aot` looked at."""
    return triton.jit(function, do_not_specialize=list(inspect.signature(function).parameters))


@dataclass(frozen=True)
class Config:
    """A kernel with its argument types and constants: what is launched, and what is compiled ahead of time."""

    op: str
    kernel: Any
    types: str  # of the run-time arguments: "*fp32 i64"
    constants: dict[str, Any]
    num_warps: int = 4

    def __post_init__(self) -> None:
        CONFIGS.append(self)

    def launch(self, programs: int, *args: Any) -> None:
        given = " ".join(_TYPES[x.dtype] if isinstance(x, Tensor) else _SCALARS[type(x)] for x in args)
        assert given == self.types, f"{self.op} is compiled for {self.types}, got {given}"
        if programs:
            with torch.cuda.device_of(args[0]):  # Triton launches on the current device; nothing for CPU tensors
                self.kernel[(programs,)](*args, **self.constants, num_warps=self.num_warps)


def float32(**tensors: Tensor) -> None:
    wrong = {name: x.dtype for name, x in tensors.items() if x.dtype != torch.float32}
    if wrong:
        raise ValueError(f"triton kernels take float32, got {wrong}; other float types run with use_backend('reference')")


def aligned(*tensors: Tensor) -> bool:
    """Can all of them be loaded 128 bits at a time?"""
    return all(x.data_ptr() % 16 == 0 for x in tensors)


# ---- tables (host) ----


@lru_cache(maxsize=128)
def blocks(segments: Segments, device: torch.device) -> Tensor:
    """int64 [blocks, 5]: first word, first dense entry, number of entries, segment, first block of the segment."""
    segment, inside, first = _split(torch.tensor(segments.sizes, dtype=torch.int64), BLOCK)
    word = segments.starts[segment] + inside // WORD
    size = (segments.dense[segment + 1] - segments.dense[segment] - inside).clamp(max=BLOCK)
    return torch.stack([word, segments.dense[segment] + inside, size, segment, first], 1).to(device)


def chunks(offsets: Tensor, device: torch.device) -> Tensor:
    """int64 [chunks, 3]: first value, end, segment. The splits depend on the offsets alone, so sums repeat."""
    segment, inside, _ = _split(offsets.diff(), CHUNK)
    lo = offsets[segment] + inside
    return torch.stack([lo, (lo + CHUNK).minimum(offsets[segment + 1]), segment], 1).to(device)


def ranks(bitmap: Bitmap) -> Tensor:
    """int64 [blocks]: packed index of the first stored entry of each block (or where it would be)."""
    return bitmap.derived("triton_ranks", _ranks)


def counts(words: Tensor, table: Tensor) -> Tensor:
    """int64 [blocks]: stored entries of each block."""
    out = torch.empty(len(table), dtype=torch.int64, device=words.device)
    _count.launch(triton.cdiv(len(table), COUNTED.value), words, table, out, len(table))
    return out


def _ranks(bitmap: Bitmap) -> Tensor:
    per_block = counts(bitmap.words, blocks(bitmap.segments, bitmap.words.device))
    return per_block.cumsum(0) - per_block


def _split(sizes: Tensor, step: int) -> tuple[Tensor, Tensor, Tensor]:
    """For every part of at most `step` entries: its segment, its first entry there, the segment's first part."""
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
def store_words(WORDS, word, size, x, allowed):
    row = tl.arange(0, ROWS)
    tl.store(WORDS + word + row, x, mask=(row * BITS < size) & allowed)


@triton.jit
def lanes():
    """int32 [16, 64]: every entry's place in its block."""
    return tl.arange(0, ROWS)[:, None] * BITS + tl.arange(0, BITS)[None, :]


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
    """X[at : at + RUN], 0 outside lo:hi. Without a mask where it can be: a mask per lane loses 128-bit loads."""
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
