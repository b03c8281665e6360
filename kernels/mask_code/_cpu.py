"""Native coding of masks."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sparsefl.kernels.layout import Bitmap, Segments
from sparsefl.kernels.mask_code import Flips
from sparsefl.kernels.native import address, extension, placement, pointer
from sparsefl.kernels.registry import register


@register("mask_encode", "cpu")
def mask_encode(bitmap: Bitmap, known: Bitmap | None, flips: Flips, out: NDArray[np.uint8]) -> int:
    where = _words(bitmap.words), _known(known), placement(bitmap.segments)
    return extension().mask_encode(*where, *map(_words, flips), address(out), out.size)


@register("mask_decode", "cpu")
def mask_decode(
    code: NDArray[np.uint8], segments: Segments, known: Bitmap | None, flips: Flips, words: Tensor
) -> bool:
    where = address(code), code.size, _known(known), placement(segments)
    return extension().mask_decode(*where, *map(_words, flips), _words(words))


def _known(known: Bitmap | None) -> int:
    return 0 if known is None else _words(known.words)


def _words(x: Tensor) -> int:
    return pointer(x, torch.int64)
