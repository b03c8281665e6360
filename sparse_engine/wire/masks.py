"""How masks travel: the section of a message that says which entries are stored.

    bitmap       L counts of stored entries;  the bits of every weight that is neither full nor empty, filled
                 up to bytes, and these to a multiple of 4
    entropy      L counts of stored entries;  the code of kernels.mask_code
    difference   L counts of dropped and L of grown ones since a mask that the receiver knows;  the same code
    known        nothing: the mask is the known one

L prunable weights; counts are uint32, little-endian.
"""

from collections.abc import Iterable
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from sparse_engine.wire.values import Bytes, as_bytes
from sparsefl.kernels import bitmap as bitmaps
from sparsefl.kernels import mask_code
from sparsefl.kernels.checksum import checksum
from sparsefl.kernels.layout import Bitmap, Segments
from sparsefl.kernels.mask_code import Flips

Codec = Literal["bitmap", "entropy", "difference", "known"]
CODECS: tuple[Codec, ...] = ("bitmap", "entropy", "difference", "known")
BUILDING: tuple[Codec, ...] = ("difference", "known")  # on a mask that the receiver knows


def shortest(bitmap: Bitmap, known: Bitmap | None) -> tuple[Codec, Bytes]:
    """Return the codec that takes the fewest bytes, and its bytes.

    Sizes are estimated first; only codecs within 2 % of the smallest estimate are encoded.
    """
    foretold = sizes(bitmap, known)
    near = 1.02 * min(foretold.values()) + 64
    tried = [(codec, write(codec, bitmap, known)) for codec, size in foretold.items() if size <= near]
    return min(tried, key=lambda pair: pair[1].size)


def sizes(bitmap: Bitmap, known: Bitmap | None) -> dict[Codec, float]:
    """Return about how many bytes each applicable codec takes; the first of equal ones wins."""
    segments, count = bitmap.segments, 4 * len(bitmap.segments)
    bits = mask_code.entropy(mask_code.flips(bitmap), segments)
    alone: dict[Codec, float] = {
        "bitmap": count + _padded(bitmap.stored, segments),
        "entropy": count + 32 + bits / 8,
    }
    if known is None:
        return alone
    flips = mask_code.flips(bitmap, known)
    same: dict[Codec, float] = {} if any(int(x.sum()) for x in flips) else {"known": 0}
    return same | alone | {"difference": 2 * count + 32 + mask_code.entropy(flips, segments, known) / 8}


def most(segments: Segments) -> int:
    """Return a number of bytes that the shortest section never exceeds."""
    return 4 * len(segments) + _up_to_4(sum(map(_bytes, segments.sizes)))


def write(codec: Codec, bitmap: Bitmap, known: Bitmap | None) -> Bytes:
    """Return the section of `bitmap` in this codec."""
    if codec == "known":
        return np.empty(0, np.uint8)
    if codec == "bitmap":
        return np.concatenate([_numbers(bitmap.counts), *_bits(bitmap)])
    if codec == "entropy":
        return np.concatenate([_numbers(bitmap.counts), mask_code.encode(bitmap)])
    assert known is not None
    return np.concatenate([*map(_numbers, mask_code.flips(bitmap, known)), mask_code.encode(bitmap, known)])


def counts(codec: Codec, section: Bytes, segments: Segments, known: Bitmap | None) -> Flips:
    """Return what the section says was dropped and grown since `known` (None: an empty mask), checked."""
    none = torch.zeros(len(segments), dtype=torch.int64)
    if codec == "known":
        return Flips(none, none)
    rows = 2 if codec == "difference" else 1
    size = 4 * rows * len(segments)
    if section.size < size:
        raise ValueError(f"expected at least {size} bytes of a mask, got {section.size}")
    found = torch.from_numpy(section[:size].view("<u4").astype(np.int64)).view(rows, len(segments))
    flips = Flips(found[0] if rows == 2 else none, found[-1])
    stored = none if known is None else known.counts
    _at_most(stored, dropped=flips.dropped)
    _at_most(torch.tensor(segments.sizes, dtype=torch.int64) - stored, stored=flips.grown)
    return flips


def read(codec: Codec, section: Bytes, segments: Segments, flips: Flips, known: Bitmap | None) -> Bitmap:
    """Return the mask of a section whose `counts` are `flips`."""
    if codec == "known":
        assert known is not None
        if section.size:
            raise ValueError(f"expected no bytes of a mask that is known, got {section.size}")
        return known
    code = section[4 * len(segments) * (2 if codec == "difference" else 1) :]
    return (
        _read_bits(code, flips.grown, segments)
        if codec == "bitmap"
        else mask_code.decode(code, segments, flips, known)
    )


def digest(bitmap: Bitmap) -> int:
    """Return the number by which sender and receiver agree on a known mask."""
    return bitmap.derived.of("checksum", lambda: checksum(as_bytes(bitmap.words)))


def _bits(bitmap: Bitmap) -> list[Bytes]:
    data, starts = as_bytes(bitmap.words), (8 * bitmap.segments.starts).tolist()
    each = zip(starts, bitmap.segments.sizes, bitmap.stored, strict=False)
    parts = [data[at : at + _bytes(n)] for at, n, count in each if 0 < count < n]
    missing = _padded(bitmap.stored, bitmap.segments) - sum(part.size for part in parts)
    return [*parts, np.zeros(missing, np.uint8)]


def _read_bits(data: Bytes, counts: Tensor, segments: Segments) -> Bitmap:
    wanted = _padded(counts.tolist(), segments)
    if data.size != wanted:
        raise ValueError(f"expected {wanted} bytes of bits, got {data.size}")
    words = torch.zeros(segments.num_words, dtype=torch.int64)
    out, at = as_bytes(words), 0
    for start, n, count in zip((8 * segments.starts).tolist(), segments.sizes, counts.tolist(), strict=False):
        if 0 < count < n:
            out[start : start + _bytes(n)] = data[at : at + _bytes(n)]
            at += _bytes(n)
        elif count:
            out[start : start + n // 8] = 255
            out[start + n // 8 : start + _bytes(n)] = (1 << n % 8) - 1
    bitmap = bitmaps.make(words, segments)
    if data[at:].any() or not bitmap.counts.equal(counts):
        raise ValueError("expected as many bits as announced and then zeros, got others")
    return bitmap


def _numbers(counts: Tensor) -> Bytes:
    return counts.numpy().astype("<u4").view(np.uint8)


def _padded(counts: Iterable[int], segments: Segments) -> int:
    partly = zip(segments.sizes, counts, strict=True)
    return _up_to_4(sum(_bytes(n) for n, count in partly if 0 < count < n))


def _bytes(bits: int) -> int:
    return -(-bits // 8)


def _up_to_4(n: int) -> int:
    return -(-n // 4) * 4


def _at_most(limits: Tensor, **found: Tensor) -> None:
    (what, numbers), *_ = found.items()
    for i, (limit, number) in enumerate(zip(limits.tolist(), numbers.tolist(), strict=True)):
        if number > limit:
            raise ValueError(f"expected up to {limit} {what} entries of weight {i}, got {number}")
