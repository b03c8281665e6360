"""NumPy: the specification of dropout. All products wrap around, at 64 or at 32 bits.

key(element)   64 bits: splitmix64's mixing of (seed, step, element), one after the other
bits(sample)   32 bits: two rounds of a hash of the sample, with a half of the key before each
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sparsefl.kernels.registry import register

_GOLDEN = 0x9E3779B97F4A7C15
_64, _32 = 2**64 - 1, 2**32 - 1


@register("dropout", "reference")
def dropout(x: Tensor, p: float, seed: int, step: int, y: Tensor) -> None:
    kept = torch.from_numpy(bits(seed, step, *x.shape) >= np.uint32(p * 2**32)).to(x.device)
    y.copy_(x * (kept * torch.tensor(1 / (1 - p), dtype=x.dtype, device=x.device)))


def bits(seed: int, step: int, elements: int, batch: int) -> NDArray[np.uint32]:
    """uint32 [elements, batch]: random bits of each entry."""
    call = int(_mixed(np.array([(seed + _GOLDEN) & _64], np.uint64))[0]) + step * _GOLDEN
    call = int(_mixed(np.array([call & _64], np.uint64))[0])
    key = _mixed(np.uint64(call) + np.arange(elements, dtype=np.uint64) * np.uint64(_GOLDEN))[:, None]
    u = np.arange(batch, dtype=np.uint32) * np.uint32(_GOLDEN >> 32) ^ (key & np.uint64(_32)).astype(
        np.uint32
    )
    u = (u ^ u >> np.uint32(16)) * np.uint32(0x21F0AAAD)
    u ^= (key >> np.uint64(32)).astype(np.uint32)
    u = (u ^ u >> np.uint32(15)) * np.uint32(0x735A2D97)
    return u ^ u >> np.uint32(15)


def _mixed(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The last step of splitmix64."""
    z = (z ^ z >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ z >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return z ^ z >> np.uint64(31)
