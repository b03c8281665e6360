"""Floating-point numbers without what their exponents have in common: n H(exponents) instead of 8 n bits.

    H(x) = -sum over values v of  share(v) log2 share(v)

Weights of a layer have few different exponents, 2.2 bits' worth in a fresh ResNet18, while their mantissas
are random. So rANS codes the leading byte of every number and leaves the others as they are. The bits of a
number are rotated by one first: then the exponent of float32 and bfloat16 is the leading byte, and that of
float16 is in it. A number of 1 byte is its leading byte. Exact; `_reference.py` says every step.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from sparsefl.kernels import registry

_call = registry.bind(__name__)
_CPU = torch.device("cpu")
Bytes = NDArray[np.uint8]
BLOCK = 1 << 16  # numbers with frequencies of their own


def encode(data: Bytes, width: int) -> Bytes | None:
    """The code of numbers of `width` bytes each; None where it would not be shorter than they are."""
    _check(data, width)
    n = data.size // width
    out = np.empty(max(data.size - 1, 0), np.uint8)
    size = _call("number_encode", _CPU, data, n, width, out)
    return None if size < 0 or n == 0 else out[:size]


def decode(code: Bytes, n: int, width: int) -> Bytes:
    """The n numbers again, or a ValueError for anything but a code of n numbers. It may come from anybody."""
    _check(code, width, parts=False)
    out = np.empty(n * width, np.uint8)
    if not _call("number_decode", _CPU, code, n, width, out):
        raise ValueError(f"expected the code of {n} numbers of {width} bytes, got another")
    return out


def _check(data: Bytes, width: int, parts: bool = True) -> None:
    if width not in (1, 2, 4):
        raise ValueError(f"expected numbers of 1, 2 or 4 bytes, got {width}")
    if data.dtype != np.uint8 or data.ndim != 1 or not data.flags.c_contiguous:
        raise ValueError(f"expected contiguous bytes, got {data.dtype} {data.shape}, strides {data.strides}")
    if parts and data.size % width:
        raise ValueError(f"expected a multiple of {width} bytes, got {data.size}")
