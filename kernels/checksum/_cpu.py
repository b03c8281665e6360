"""Native checksum."""

import numpy as np
from numpy.typing import NDArray

from sparsefl.kernels.native import address, extension
from sparsefl.kernels.registry import register


@register("checksum", "cpu")
def checksum(data: NDArray[np.uint8], seed: int) -> int:
    return extension().checksum(address(data), data.size, seed)
