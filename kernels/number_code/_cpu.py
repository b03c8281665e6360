"""Native coding of numbers."""

import numpy as np
from numpy.typing import NDArray

from sparsefl.kernels.native import address, extension
from sparsefl.kernels.registry import register

Bytes = NDArray[np.uint8]


@register("number_encode", "cpu")
def number_encode(data: Bytes, n: int, width: int, out: Bytes) -> int:
    return extension().number_encode(address(data), n, width, address(out), out.size)


@register("number_decode", "cpu")
def number_decode(code: Bytes, n: int, width: int, out: Bytes) -> bool:
    return extension().number_decode(address(code), code.size, n, width, address(out))
