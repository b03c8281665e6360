"""Whole numbers in Python: the specification of the code.

Strings come tensor by tensor, of a difference first the dropped ones, packed into bytes, the first bit
lowest, the last byte filled with zeros. A string without ones or without zeros is left out. A byte with k
ones has frequency f_k out of 2^24, computed from (ones, bits); bytes are ordered by (k, value), `start` is
the sum of the frequencies before. Byte i of a string belongs to state x = x_(i % 4). Every state starts at
2^31. The encoder takes strings and bytes from the last to the first, and for each

    if x >= 2^39 f:  write x % 2^32,  x <- x // 2^32
    x <- (x // f) 2^24 + start + x % f

The code is the four states (uint64), then the words (uint32), the last written first; little-endian. The
decoder undoes this from the front. In the end every state is 2^31 again, and no word is left.
"""

from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sparsefl.kernels.layout import Bitmap, Segments
from sparsefl.kernels.mask_code import Flips
from sparsefl.kernels.reference import dense_mask, write_words
from sparsefl.kernels.registry import register

Bytes = NDArray[np.uint8]
SCALE, LANES, LOW = 24, 4, 1 << 31
ORDER = sorted(range(256), key=lambda byte: (byte.bit_count(), byte))
RANK = {byte: rank for rank, byte in enumerate(ORDER)}


def frequencies(ones: int, bits: int) -> list[int]:
    """f of every byte of ORDER: p^k q^(8-k), all numbers with 32 bits after the point, rounded down, at least
    1; the likelier of 00000000 and 11111111 makes up for what is missing to 2^24."""
    p = (ones << 32) // bits
    q = (1 << 32) - p
    of_p = [*accumulate([p] * 8, lambda a, b: a * b >> 32, initial=1 << 32)]
    of_q = [*accumulate([q] * 8, lambda a, b: a * b >> 32, initial=1 << 32)]
    f = [max(1, of_p[b.bit_count()] * of_q[8 - b.bit_count()] >> 64 - SCALE) for b in ORDER]
    f[-1 if p > q else 0] += (1 << SCALE) - sum(f)
    return f


@register("mask_encode", "reference")
def mask_encode(bitmap: Bitmap, known: Bitmap | None, flips: Flips, out: Bytes) -> int:
    x, words = [LOW] * LANES, []
    strings = list(_strings(bitmap, known))
    for bits, ones in reversed(strings):
        if ones in (0, len(bits)):
            continue
        f = frequencies(ones, len(bits))
        starts = [0, *accumulate(f)]
        data = np.packbits(bits, bitorder="little").tolist()
        for i in reversed(range(len(data))):
            rank, state = RANK[data[i]], x[i % LANES]
            if state >= f[rank] << 39:
                words.append(state & 0xFFFFFFFF)
                state >>= 32
            x[i % LANES] = (state // f[rank] << SCALE) + starts[rank] + state % f[rank]
    code = np.array(x, "<u8").tobytes() + np.array(words[::-1], "<u4").tobytes()
    out[: len(code)] = np.frombuffer(code, np.uint8)
    return len(code)


@register("mask_decode", "reference")
def mask_decode(code: Bytes, segments: Segments, known: Bitmap | None, flips: Flips, words: Tensor) -> bool:
    if code.size < 8 * LANES or code.size % 4:
        return False
    reader = _Reader(code.tobytes())
    mask = torch.zeros(segments.numel, dtype=torch.bool)
    before = dense_mask(known.words, segments) if known else torch.zeros_like(mask)
    parts = zip(mask.split(segments.sizes), before.split(segments.sizes), strict=True)
    for (new, old), dropped, grown in zip(parts, flips.dropped.tolist(), flips.grown.tolist(), strict=True):
        gone, come = reader.string(dropped, int(old.sum())), reader.string(grown, int((~old).sum()))
        if gone is None or come is None:
            return False
        new[old], new[~old] = ~gone, come
    if reader.x != [LOW] * LANES or reader.words:
        return False
    write_words(mask, segments, words)
    return True


class _Reader:
    def __init__(self, code: bytes) -> None:
        self.x = [int(x) for x in np.frombuffer(code, "<u8", LANES)]
        self.words = [int(w) for w in np.frombuffer(code, "<u4", offset=8 * LANES)][::-1]

    def string(self, ones: int, bits: int) -> Tensor | None:
        """The next one, bool [bits]; None: not one with that many ones."""
        if ones in (0, bits):
            return torch.full((bits,), ones > 0)
        starts = [0, *accumulate(frequencies(ones, bits))]
        data = [self._byte(i % LANES, starts) for i in range(-(-bits // 8))]
        if None in data:
            return None
        found = np.unpackbits(np.array(data, np.uint8), bitorder="little")
        if found[:bits].sum() != ones or found[bits:].any():
            return None
        return torch.from_numpy(found[:bits].astype(bool))

    def _byte(self, lane: int, starts: list[int]) -> int | None:
        x = self.x[lane]
        if not LOW <= x < LOW << 32:
            return None
        slot = x & (1 << SCALE) - 1
        rank = bisect_right(starts, slot) - 1
        x = (starts[rank + 1] - starts[rank]) * (x >> SCALE) + slot - starts[rank]
        if x < LOW:
            if not self.words:
                return None
            x = x << 32 | self.words.pop()
        self.x[lane] = x
        return ORDER[rank]


def _strings(bitmap: Bitmap, known: Bitmap | None) -> Iterator[tuple[NDArray[np.bool_], int]]:
    """(bits, ones) of every string."""
    sizes = bitmap.segments.sizes
    mask = dense_mask(bitmap.words, bitmap.segments)
    before = dense_mask(known.words, bitmap.segments) if known else torch.zeros_like(mask)
    for new, old in zip(mask.split(sizes), before.split(sizes), strict=True):
        for string in (~new[old], new[~old]):
            yield string.numpy(), int(string.sum())
