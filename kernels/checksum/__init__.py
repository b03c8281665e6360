"""XXH64 of bytes: finds damage, proves nothing (anybody can compute it).

64 bits, so that millions of damaged messages do not get past it; and this one, because it needs neither
tables nor special instructions and still runs at the speed of memory.
"""

from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray

from sparsefl.kernels import registry

_call = registry.bind(__name__)
_CPU = torch.device("cpu")


def checksum(data: NDArray[np.uint8], seed: int = 0) -> int:
    """0 <= checksum < 2^64"""
    return chain((data,), seed)


def chain(parts: Iterable[NDArray[np.uint8]], seed: int = 0) -> int:
    """The checksum of the last part; the seed of each is the checksum of the part before."""
    given = [*parts]
    for data in given:
        if data.dtype != np.uint8 or data.ndim != 1 or not data.flags.c_contiguous:
            raise ValueError(
                f"expected contiguous bytes, got {data.dtype} {data.shape}, strides {data.strides}"
            )
    return _call("checksum", _CPU, given, seed)
