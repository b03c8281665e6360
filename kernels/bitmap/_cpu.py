"""Native bitmaps."""

import torch
from torch import Tensor

from sparsefl.kernels.layout import Csr, Segments, Transpose
from sparsefl.kernels.native import extension, placement, pointer
from sparsefl.kernels.registry import register


@register("bitmap_count", "cpu")
def bitmap_count(words: Tensor, segments: Segments, offsets: Tensor) -> bool:
    return extension().bitmap_count(_words(words), placement(segments), _words(offsets))


@register("bitmap_from_mask", "cpu")
def bitmap_from_mask(mask: Tensor, segments: Segments, words: Tensor) -> None:
    extension().bitmap_from_mask(pointer(mask, torch.bool), placement(segments), _words(words))


@register("bitmap_to_mask", "cpu")
def bitmap_to_mask(words: Tensor, segments: Segments, mask: Tensor) -> None:
    extension().bitmap_to_mask(_words(words), placement(segments), pointer(mask, torch.bool))


@register("bitmap_csr", "cpu")
def bitmap_csr(words: Tensor, rows: int, cols: int, out: Csr) -> None:
    extension().bitmap_csr(_words(words), rows, cols, *_ints(out), out.columns.numel())


@register("bitmap_transpose", "cpu")
def bitmap_transpose(words: Tensor, rows: int, cols: int, out: Transpose) -> None:
    extension().bitmap_transpose(_words(words), rows, cols, *_ints(out), out.rows.numel())


def _words(x: Tensor) -> int:
    return pointer(x, torch.int64)


def _ints(tensors: Csr | Transpose) -> list[int]:
    return [pointer(x, torch.int32) for x in tensors]
