"""Memory for results: large CPU buffers are used again instead of coming fresh from the system.

A training step makes the same activations every time. torch takes each from the C library, which maps large
ones anew: at 8 MiB the page faults cost as much as a sparse convolution. The native pool
(csrc/core/memory.cpp) keeps what was given back, on huge pages where the system has them, and cuts buffers
of any size out of it.
"""

import re
from math import prod

import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from sparsefl.kernels import native

LARGE = 1 << 16  # bytes from which the pool is asked


def empty(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """An uninitialised contiguous tensor with the dtype and device of `like`, or a MemoryError."""
    if (
        like.dtype in (torch.float32, torch.bfloat16)
        and like.device.type == "cpu"
        and like.element_size() * prod(shape) >= LARGE
        and native.built()
    ):
        if like.dtype == torch.float32:
            return from_dlpack(native.extension().empty(shape))
        count = prod(shape)  # the pool gives floats: two of these in each
        pairs = from_dlpack(native.extension().empty(((count + 1) // 2,)))
        return pairs.view(torch.bfloat16)[:count].view(shape)
    return plain(shape, like.dtype, like.device)


def plain(
    shape: tuple[int, ...] | int, dtype: torch.dtype, device: torch.device | str | None = None
) -> Tensor:
    """An uninitialised tensor out of torch's own memory, or a MemoryError."""
    try:
        return torch.empty(shape, dtype=dtype, device=device)
    except RuntimeError as error:
        if (sentence := exhausted(error)) is None:
            raise
        raise MemoryError(sentence) from error


def exhausted(error: BaseException) -> str | None:
    """Return a sentence if `error` means that there is no memory; None for any other error.

    torch has no class for it: it raises a RuntimeError, of its allocator or of the C++ library.

    >>> import sparse_engine as se
    >>> se.out_of_memory(MemoryError("expected 8 bytes, got none")), se.out_of_memory(ValueError("no"))
    ('expected 8 bytes, got none', None)
    """
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return str(error) or "expected more memory, got none"
    if isinstance(error, RuntimeError):
        wanted = re.search(r"can't allocate memory: you tried to allocate (\d+) bytes", str(error))
        if wanted:
            return f"expected {wanted[1]} bytes of memory for a tensor, got none"
        if "std::bad_alloc" in str(error):
            return "expected more memory, got none"
    return None


def idle_bytes() -> int:
    """Bytes that the pool keeps for the next results."""
    return native.extension().bytes_idle() if native.built() else 0


def trim() -> None:
    """Give the system back the pages of what is idle."""
    if native.built():
        native.extension().trim()
