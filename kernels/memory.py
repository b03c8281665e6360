"""Memory for results: large CPU buffers are used again instead of coming fresh from the system.

A training step makes the same activations every time. torch takes each from the C library, which maps large
ones anew: at 8 MiB the page faults cost as much as a sparse convolution. The native pool (csrc/memory.cpp)
keeps what was given back, on huge pages where the system has them, and cuts buffers of any size out of it.
"""

from math import prod

import torch
from torch import Tensor

from kernels import native

LARGE = 1 << 16  # bytes from which the pool is asked


def empty(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """An uninitialised contiguous tensor with the dtype and device of `like`."""
    if (
        like.dtype == torch.float32
        and like.device.type == "cpu"
        and 4 * prod(shape) >= LARGE
        and native.isas()
    ):
        return native.extension().empty(shape)
    return like.new_empty(shape)


def idle_bytes() -> int:
    """Bytes that the pool keeps for the next results."""
    return native.extension().bytes_idle() if native.isas() else 0


def trim() -> None:
    """Give the system back the pages of what is idle."""
    if native.isas():
        native.extension().trim()
