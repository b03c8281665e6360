"""Types of PTX as NumPy types, and arithmetic that NumPy lacks: one rounding in fma, ftz, bf16, tf32.

A register holds bits: unsigned integers of 16, 32 or 64, or booleans for predicates. An instruction says
how it reads them (`s32`, `f64`, `b16`), which is a `Kind`.
"""

import re
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

UNSIGNED = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
SIGNED = {8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64}
FLOAT = {16: np.float16, 32: np.float32, 64: np.float64}
_SMALLEST_NORMAL = np.float32(2.0**-126)


class Kind(NamedTuple):
    """How bits are read: `letter` is s, u, b, f or p (predicate)."""

    letter: str
    bits: int

    @property
    def type(self) -> type:
        table = SIGNED if self.letter == "s" else FLOAT if self.letter == "f" else UNSIGNED
        return np.bool_ if self.letter == "p" else table[self.bits]

    @property
    def wide(self) -> "Kind":
        return Kind(self.letter, 2 * self.bits)


PRED, B16, B32, B64 = Kind("p", 1), Kind("b", 16), Kind("b", 32), Kind("b", 64)
S32, U32, F32 = Kind("s", 32), Kind("u", 32), Kind("f", 32)


@cache
def kind(name: str) -> Kind:
    """`s32` -> Kind("s", 32); bf16, tf32 and pairs of halves are bits."""
    if name == "pred":
        return PRED
    found = re.fullmatch(r"(b|s|u|f|bf|tf)(\d+)(x2)?", name)
    if found is None:
        raise ValueError(f"unknown type .{name}")
    if found[3]:
        return B32
    return Kind(found[1] if len(found[1]) == 1 else "b", 32 if found[1] == "tf" else int(found[2]))


def flushed(x: NDArray) -> NDArray:
    """Numbers too small for a normal float32 as 0 of their sign (.ftz)."""
    return np.where(np.abs(x) < _SMALLEST_NORMAL, np.copysign(np.float32(0), x), x).astype(np.float32)


def fma32(x: NDArray, y: NDArray, z: NDArray) -> NDArray:
    """x y + z rounded once: the product is exact in float64, the sum rounded to odd, then to float32."""
    product, addend = x.astype(np.float64) * y.astype(np.float64), z.astype(np.float64)
    total = product + addend
    part = total - product
    error = (product - (total - part)) + (addend - part)
    bits = total.view(np.int64)
    inexact = ((bits & 1) == 0) & (error != 0) & np.isfinite(total)
    away = (error > 0) == (total > 0)
    return np.where(inexact, np.where(away, bits + 1, bits - 1), bits).view(np.float64).astype(np.float32)


def to_bf16(x: NDArray) -> NDArray:
    """uint16: float32 rounded to the nearest, ties to even."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32).astype(np.uint64)
    rounded = (bits + np.uint64(0x7FFF) + ((bits >> np.uint64(16)) & np.uint64(1))) >> np.uint64(16)
    return np.where(np.isnan(x), np.uint64(0x7FFF), rounded).astype(np.uint16)


def to_tf32(x: NDArray) -> NDArray:
    """uint32: bits of a float32 rounded to 10 bits of mantissa, ties away from 0 (cvt.rna)."""
    return (x + np.uint32(0x1000)) & np.uint32(0xFFFFE000)


def halves(x: NDArray, name: str) -> NDArray:
    """float32 [2, ...]: the two f16 or bf16 in each uint32, low one first."""
    if name == "bf16":
        return np.stack([x << np.uint32(16), x & np.uint32(0xFFFF0000)]).view(np.float32)
    return (
        np.stack([x & np.uint32(0xFFFF), x >> np.uint32(16)])
        .astype(np.uint16)
        .view(np.float16)
        .astype(np.float32)
    )
