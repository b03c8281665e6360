"""Bitmaps: which entries of a model's tensors are stored, and the index structures built from that.

make       words -> Bitmap (checked and counted)
from_mask  bool, dense -> Bitmap           to_mask   Bitmap -> bool, dense
csr        Bitmap of one matrix -> row pointers and columns
transpose  Bitmap of one matrix -> column pointers, rows, and where the packed value of each entry is
"""

from collections.abc import Callable, Sequence
from itertools import accumulate

import torch
from torch import Tensor

from sparsefl.kernels import checks, devices, memory, registry
from sparsefl.kernels.layout import Bitmap, Csr, Segments, Transpose

_call = registry.bind(__name__)
_MOST = 2**31 - 1  # CSR indices are int32


def make(words: Tensor, segments: Segments | Sequence[int]) -> Bitmap:
    """A Bitmap over `words`, which the caller gives away: they must not change afterwards."""
    segments = segments if isinstance(segments, Segments) else Segments(tuple(segments))
    checks.dtype(torch.int64, words=words)
    checks.contiguous(words=words)
    if words.numel() != segments.num_words:
        raise ValueError(
            f"expected {segments.num_words} words for sizes {segments.sizes}, got {words.numel()}"
        )
    offsets = memory.plain(len(segments) + 1, torch.int64)
    if not _call("bitmap_count", words.device, words, segments, offsets):
        raise ValueError("expected zero bits after the end of every tensor, got some set")
    return Bitmap(words, segments, offsets)


def counted(words: Tensor, segments: Segments, stored: Sequence[int]) -> Bitmap:
    """A Bitmap over `words` that came of one by an operation: how much each segment stores is known, and the
    bits that pad it are 0."""
    return Bitmap(words, segments, torch.tensor([0, *accumulate(stored)], dtype=torch.int64))


def from_mask(mask: Tensor, segments: Segments | Sequence[int] | None = None) -> Bitmap:
    """The Bitmap of a bool tensor: one segment, or the concatenation of several."""
    segments = Segments((mask.numel(),)) if segments is None else segments
    segments = segments if isinstance(segments, Segments) else Segments(tuple(segments))
    checks.dtype(torch.bool, mask=mask)
    checks.contiguous(mask=mask)
    checks.length(segments.numel, f"entries for sizes {segments.sizes}", mask=mask)
    words = memory.plain(segments.num_words, torch.int64, mask.device)
    if segments.num_words:
        _call("bitmap_from_mask", mask.device, mask.view(-1), segments, words)
    return make(words, segments)


def to_mask(bitmap: Bitmap) -> Tensor:
    """bool [numel]: the dense form, segments concatenated."""
    mask = memory.plain(bitmap.segments.numel, torch.bool, bitmap.words.device)
    if mask.numel():
        _call("bitmap_to_mask", mask.device, bitmap.words, bitmap.segments, mask)
    return mask


def full(segments: Segments | Sequence[int], device: torch.device | str = "cpu") -> Bitmap:
    """Everything stored."""
    segments = segments if isinstance(segments, Segments) else Segments(tuple(segments))
    return counted(_everything(segments, torch.device(device)).clone(), segments, segments.sizes)


def to(bitmap: Bitmap, device: torch.device | str) -> Bitmap:
    """Return the bitmap on `device`; itself if it is there already. "cuda" is the current card."""
    device = devices.numbered(device)
    if bitmap.words.device == device:
        return bitmap
    return Bitmap(bitmap.words.to(device), bitmap.segments, bitmap.offsets)


def complement(bitmap: Bitmap) -> Bitmap:
    """What `bitmap` does not store; the padding stays zero."""
    segments = bitmap.segments
    words = bitmap.words ^ _everything(segments, bitmap.words.device)
    return counted(words, segments, [n - d for n, d in zip(segments.sizes, bitmap.stored, strict=True)])


def _everything(segments: Segments, device: torch.device) -> Tensor:
    """Words with every bit that is no padding; kept with the segments."""

    def made() -> Tensor:
        words = memory.plain(segments.num_words, torch.int64).fill_(-1)
        ends, keep = segments.ragged
        words[ends] = keep
        return words.to(device)

    return segments.derived.of(f"everything {device}", made)


def csr(bitmap: Bitmap, rows: int) -> Csr:
    """Rows of a one-segment bitmap seen as a matrix of `rows` rows."""
    cols = _matrix(bitmap, rows)
    new = _ints(bitmap)
    out = Csr(new(rows + 1), new(bitmap.nnz))
    if rows and cols:
        _call("bitmap_csr", bitmap.words.device, bitmap.words, rows, cols, out)
    else:
        out.pointers.zero_()
    return out


def transpose(bitmap: Bitmap, rows: int) -> Transpose:
    """Columns of a one-segment bitmap seen as a matrix of `rows` rows; rows ascend within a column."""
    cols = _matrix(bitmap, rows)
    new = _ints(bitmap)
    out = Transpose(new(cols + 1), new(bitmap.nnz), new(bitmap.nnz))
    if rows and cols:
        _call("bitmap_transpose", bitmap.words.device, bitmap.words, rows, cols, out)
    else:
        out.pointers.zero_()
    return out


def _matrix(bitmap: Bitmap, rows: int) -> int:
    if len(bitmap.segments) != 1:
        raise ValueError(f"expected the bitmap of one tensor, got {len(bitmap.segments)}")
    size = bitmap.segments.numel
    if size > _MOST:
        raise ValueError(f"expected at most {_MOST} entries in a matrix (int32 indices), got {size}")
    if rows < 0 or (size % rows if rows else size):
        raise ValueError(f"expected a number of rows that divides {size} entries, got {rows}")
    return size // rows if rows else 0


def _ints(bitmap: Bitmap) -> Callable[[int], Tensor]:
    return lambda n: memory.plain(n, torch.int32, bitmap.words.device)
