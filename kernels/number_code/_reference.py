"""Whole numbers in Python: the specification of the code.

Numbers are rotated to the left by one bit. First come all their lower bytes, then block by block of 65536
numbers the leading ones:

    1 byte                d - 1, where d different bytes occur
    d bytes               these bytes, ascending
    2 d bytes             how often each occurs, minus 1
    4 states, words       where d > 1: rANS as in kernels.mask_code, with frequencies out of 2^12,
                          f = 1 + count (2^12 - d) // n, and the most frequent byte (the first of them) has
                          what is missing to 2^12 in addition; byte i belongs to state i % 4

All numbers are little-endian.
"""

from bisect import bisect_right
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from sparsefl.kernels.number_code import BLOCK
from sparsefl.kernels.registry import register

Bytes = NDArray[np.uint8]
SCALE, LANES, LOW = 12, 4, 1 << 31


@register("number_encode", "reference")
def number_encode(data: Bytes, n: int, width: int, out: Bytes) -> int:
    bits = 8 * width
    numbers = data.view(f"<u{width}")
    parts = (numbers << 1 | numbers >> bits - 1).astype(f"<u{width}").view(np.uint8).reshape(n, width)
    code = parts[:, :-1].tobytes()
    for i in range(0, n, BLOCK):
        code += _encode(parts[i : i + BLOCK, -1])
    if len(code) > out.size:
        return -1
    out[: len(code)] = np.frombuffer(code, np.uint8)
    return len(code)


@register("number_decode", "reference")
def number_decode(code: Bytes, n: int, width: int, out: Bytes) -> bool:
    low = n * (width - 1)
    if code.size < low:
        return False
    parts = np.empty((n, width), np.uint8)
    parts[:, :-1] = code[:low].reshape(n, width - 1)
    rest: bytes | None = code[low:].tobytes()
    for i in range(0, n, BLOCK):
        rest = _decode(rest, parts[i : i + BLOCK, -1]) if rest is not None else None
    numbers = parts.reshape(-1).view(f"<u{width}")
    out[:] = (numbers >> 1 | numbers << 8 * width - 1).astype(f"<u{width}").view(np.uint8)
    return rest == b""


def frequencies(counts: list[int]) -> list[int]:
    n = sum(counts)
    f = [1 + count * ((1 << SCALE) - len(counts)) // n for count in counts]
    f[counts.index(max(counts))] += (1 << SCALE) - sum(f)
    return f


def _encode(lead: Bytes) -> bytes:
    found, counts = np.unique(lead, return_counts=True)
    code = bytes([len(found) - 1]) + found.tobytes() + (counts - 1).astype("<u2").tobytes()
    if len(found) == 1:
        return code
    f = frequencies(counts.tolist())
    starts, rank = [0, *accumulate(f)], {byte: i for i, byte in enumerate(found.tolist())}
    x, words = [LOW] * LANES, []
    for i in reversed(range(lead.size)):
        s, state = rank[int(lead[i])], x[i % LANES]
        if state >= f[s] << 51:
            words.append(state & 0xFFFFFFFF)
            state >>= 32
        x[i % LANES] = (state // f[s] << SCALE) + starts[s] + state % f[s]
    return code + np.array(x, "<u8").tobytes() + np.array(words[::-1], "<u4").tobytes()


def _decode(code: bytes, lead: Bytes) -> bytes | None:
    """Fills `lead`; what is left of the code. None: it is not one."""
    distinct = code[0] + 1 if code else 0
    if len(code) < 1 + 3 * distinct or not code:
        return None
    found = list(code[1 : 1 + distinct])
    counts = (np.frombuffer(code, "<u2", distinct, 1 + distinct).astype(int) + 1).tolist()
    code = code[1 + 3 * distinct :]
    if found != sorted(set(found)) or sum(counts) != lead.size:
        return None
    if distinct == 1:
        lead[:] = found[0]
        return code
    starts = [0, *accumulate(frequencies(counts))]
    if len(code) < 8 * LANES:
        return None
    x, at = [int(x) for x in np.frombuffer(code, "<u8", LANES)], 8 * LANES
    if not all(LOW <= state < LOW << 32 for state in x):
        return None
    for i in range(lead.size):
        state = x[i % LANES]
        slot = state & (1 << SCALE) - 1
        s = bisect_right(starts, slot) - 1
        state = (starts[s + 1] - starts[s]) * (state >> SCALE) + slot - starts[s]
        if state < LOW:
            if at + 4 > len(code):
                return None
            state, at = state << 32 | int.from_bytes(code[at : at + 4], "little"), at + 4
        lead[i], x[i % LANES] = found[s], state
    same = all(int((lead == byte).sum()) == count for byte, count in zip(found, counts, strict=True))
    return code[at:] if x == [LOW] * LANES and same else None
