"""XXH64 in whole numbers, after https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md"""

import numpy as np
from numpy.typing import NDArray

from sparsefl.kernels.registry import register

ALL = 2**64 - 1
P1, P2, P3, P4, P5 = (
    0x9E3779B185EBCA87,
    0xC2B2AE3D27D4EB4F,
    0x165667B19E3779F9,
    0x85EBCA77C2B2AE63,
    0x27D4EB2F165667C5,
)


@register("checksum", "reference")
def checksum(parts: list[NDArray[np.uint8]], seed: int) -> int:
    for data in parts:
        seed = _checksum(data, seed)
    return seed


def _checksum(data: NDArray[np.uint8], seed: int) -> int:
    rest = data.tobytes()
    hash = seed + P5 & ALL
    if len(rest) >= 32:
        sums = [seed + P1 + P2 & ALL, seed + P2 & ALL, seed, seed - P1 & ALL]
        while len(rest) >= 32:
            sums = [_mix(sum, _number(rest[8 * i : 8 * i + 8])) for i, sum in enumerate(sums)]
            rest = rest[32:]
        hash = sum(_rotate(x, n) for x, n in zip(sums, (1, 7, 12, 18), strict=True)) & ALL
        for x in sums:
            hash = (hash ^ _mix(0, x)) * P1 + P4 & ALL
    hash = hash + data.size & ALL
    while len(rest) >= 8:
        hash, rest = _rotate(hash ^ _mix(0, _number(rest[:8])), 27) * P1 + P4 & ALL, rest[8:]
    if len(rest) >= 4:
        hash, rest = _rotate(hash ^ _number(rest[:4]) * P1 & ALL, 23) * P2 + P3 & ALL, rest[4:]
    for byte in rest:
        hash = _rotate(hash ^ byte * P5 & ALL, 11) * P1 & ALL
    hash = (hash ^ hash >> 33) * P2 & ALL
    hash = (hash ^ hash >> 29) * P3 & ALL
    return hash ^ hash >> 32


def _number(data: bytes) -> int:
    return int.from_bytes(data, "little")


def _rotate(x: int, n: int) -> int:
    return (x << n | x >> 64 - n) & ALL


def _mix(sum: int, x: int) -> int:
    return _rotate(sum + x * P2 & ALL, 31) * P1 & ALL
