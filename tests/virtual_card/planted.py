"""Small kernels that test the card: sound ones, and some with a planted bug. Compiled like our own."""

import triton.language as tl

from sparsefl.kernels import tile


@tile.kernel
def copy_kernel(X, Y, n: tl.int64, SLIP: tl.constexpr, MASKED: tl.constexpr):
    """Y[i] = X[i + SLIP]; SLIP = 1 is an off-by-one."""
    i = tl.program_id(0).to(tl.int64) * 128 + tl.arange(0, 128)
    if MASKED:
        tl.store(Y + i, tl.load(X + i + SLIP, mask=i < n), mask=i < n)
    else:
        tl.store(Y + i, tl.load(X + i + SLIP))


@tile.kernel
def aligned_kernel(X, Y):
    """Says that X and Y are multiples of 16 bytes, which is the caller's promise."""
    i, start = tl.arange(0, 512), tl.program_id(0) * 512
    tl.store(tl.multiple_of(Y + start, 16) + i, tl.load(tl.multiple_of(X + start, 16) + i))


@tile.kernel
def sum_kernel(X, S):
    """S[program] = sum of 512 numbers, over four warps: through shared memory, with barriers."""
    p = tl.program_id(0)
    tl.store(S + p, tl.sum(tl.load(X + p * 512 + tl.arange(0, 512)), 0))


@tile.kernel
def race_kernel(X, Y):
    """Y[0] from every program."""
    tl.store(Y, tl.load(X + tl.program_id(0)))


@tile.kernel
def neighbour_kernel(X):
    """X[p + 1] is read by program p and written by program p + 1."""
    p = tl.program_id(0)
    tl.store(X + p, tl.load(X + p + 1) + 1)


@tile.kernel
def count_kernel(X, Y, N):
    """The same through an atomic is sound; Y[program] = what was there."""
    p = tl.program_id(0)
    tl.store(Y + p, tl.atomic_add(N, tl.load(X + p)))


@tile.kernel
def hole_kernel(X, Y, n: tl.int64, STORED: tl.constexpr):
    """A masked load leaves noise in the lanes from n on: sound if they are masked in the store as well."""
    i = tl.arange(0, 128)
    x = tl.load(X + i, mask=i < n) * 2
    tl.store(Y + i, x, mask=i < STORED)


@tile.kernel
def dot_kernel(A, B, C, K: tl.constexpr, N: tl.constexpr, BK: tl.constexpr):
    """C = A B of [programs, 16, K] and [K, N], BK at a time: through shared memory, to tensor cores."""
    p = tl.program_id(0)
    row, column, inner = tl.arange(0, 16), tl.arange(0, N), tl.arange(0, BK)
    A, B = tl.multiple_of(A + p * 16 * K, 16), tl.multiple_of(B + p * 0, 16)
    total = tl.zeros([16, N], tl.float32)
    for at in range(0, K, BK):
        a = tl.load(A + row[:, None] * K + at + inner[None, :])
        b = tl.load(B + (at + inner)[:, None] * N + column[None, :])
        total = tl.dot(a, b, total, input_precision="tf32")
    tl.store(C + p * 16 * N + row[:, None] * N + column[None, :], total)


def _config(kernel, types: str, constants: dict | None = None, num_warps: int = 4) -> tile.Config:
    """A configuration that is not one of the project's."""
    made = tile.Config("planted", kernel, types, constants or {}, num_warps)
    tile.CONFIGS.remove(made)
    return made


COPY = {
    (slip, masked): _config(copy_kernel, "*fp32 *fp32 i64", {"SLIP": slip, "MASKED": masked})
    for slip in (0, 1)
    for masked in (True, False)
}
ALIGNED = _config(aligned_kernel, "*fp32 *fp32")
SUM = _config(sum_kernel, "*fp32 *fp32")
RACE = _config(race_kernel, "*fp32 *fp32", num_warps=1)
NEIGHBOUR = _config(neighbour_kernel, "*fp32", num_warps=1)
COUNT = _config(count_kernel, "*i32 *i32 *i32", num_warps=1)
HOLE = {stored: _config(hole_kernel, "*fp32 *fp32 i64", {"STORED": stored}) for stored in (100, 101)}
DOT = {
    kind: _config(dot_kernel, f"*{kind} *{kind} *fp32", {"K": 160, "N": 32, "BK": 32}, num_warps=2)
    for kind in ("fp32", "fp16", "bf16")
}
KERNELS = [*COPY.values(), ALIGNED, SUM, RACE, NEIGHBOUR, COUNT, *HOLE.values(), *DOT.values()]
