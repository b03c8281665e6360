"""Native checksum."""

import numpy as np
from numpy.typing import NDArray

from sparsefl.kernels.native import address, extension
from sparsefl.kernels.registry import register


@register("checksum", "cpu")
def checksum(parts: list[NDArray[np.uint8]], seed: int) -> int:
    native = extension().checksum
    for data in parts:
        seed = native(address(data), data.size, seed)
    return seed
