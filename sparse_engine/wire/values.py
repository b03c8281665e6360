"""How numbers travel: exactly, in 16 bits, in 8 with one scale per 256 numbers, or in 16 with one scale.

    fp32   4 byte        exact
    bf16   2             3 digits, the range of fp32
    fp16   2             4 digits up to 65504, fewer below 6e-5
    q8     1 + 1 / 64    v = s c,  c = round(v / s) from -127 to 127,  s = max |v| / 127 of 256 in a row
    q16    2             v = s c,  c = round(v / s) from -32767 to 32767,  s = max |v| / 32767 of all

`pack` then takes out what their exponents have in common (kernels.number_code), which loses nothing; of q8
and q16 it packs the codes. `encode` refuses what does not fit, `decode` what is not finite. Little-endian.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sparsefl.kernels import number_code

Bytes = NDArray[np.uint8]
BLOCK = 256  # numbers that share a scale


@dataclass(frozen=True)
class Plain:
    """Every number in `dtype`."""

    dtype: torch.dtype

    @property
    def width(self) -> int:
        return self.dtype.itemsize

    def size(self, n: int) -> int:
        return n * self.width

    def head(self, n: int) -> int:
        return 0

    def encode(self, x: Tensor) -> Bytes:
        return as_bytes(_finite(x.to(self.dtype), f"that fit into {self.dtype}"))

    def decode(self, data: Bytes, n: int) -> Tensor:
        return _finite(from_bytes(data, self.dtype).float())


@dataclass(frozen=True)
class Scaled:
    """Scales (float32), then codes. Numbers whose scale would be 0 are all 0."""

    dtype: torch.dtype
    block: int | None  # how many numbers share a scale; None: all

    @property
    def width(self) -> int:
        return self.dtype.itemsize

    @property
    def largest(self) -> int:
        """The largest code; the smallest is its negative."""
        return torch.iinfo(self.dtype).max

    def size(self, n: int) -> int:
        return self.head(n) + n * self.width

    def head(self, n: int) -> int:
        """Return the bytes of the scales."""
        return 4 * -(-n // self._block(n))

    def encode(self, x: Tensor) -> Bytes:
        blocks, top = _blocks(x, self._block(x.numel())), self.largest
        scales = blocks.abs().amax(1, keepdim=True) / top
        _finite(scales * top, f"that fit into {self.width} byte and a scale")
        codes = (blocks / scales.where(scales > 0, torch.inf)).round_().clamp_(-top, top)
        flat = codes.to(self.dtype).view(-1)[: x.numel()]
        return np.concatenate([as_bytes(scales.view(-1)), as_bytes(flat)])

    def decode(self, data: Bytes, n: int) -> Tensor:
        split, top = self.head(n), self.largest
        scales, codes = from_bytes(data[:split], torch.float32), from_bytes(data[split:], self.dtype)
        if (_finite(scales) < 0).any() or (codes < -top).any():
            raise ValueError(f"expected scales from 0 and codes from {-top}, got smaller ones")
        return _finite((_blocks(codes.float(), self._block(n)) * scales[:, None]).view(-1)[:n].contiguous())

    def _block(self, n: int) -> int:
        return self.block or max(n, 1)


Codec = Plain | Scaled
CODECS: dict[str, Codec] = {
    "fp32": Plain(torch.float32),
    "bf16": Plain(torch.bfloat16),
    "fp16": Plain(torch.float16),
    "q8": Scaled(torch.int8, BLOCK),
    "q16": Scaled(torch.int16, None),
}


def pack(codec: Codec, data: Bytes, n: int) -> Bytes | None:
    """Return what `codec` made of n numbers in fewer bytes; None if there is nothing to gain."""
    split = codec.head(n)
    code = number_code.encode(data[split:], codec.width)
    return None if code is None else np.concatenate([data[:split], code])


def unpack(codec: Codec, data: Bytes, n: int) -> Bytes:
    """Return the n numbers that were packed, exactly as they were."""
    split = codec.head(n)
    return np.concatenate([data[:split], number_code.decode(data[split:], n, codec.width)])


def as_bytes(x: Tensor) -> Bytes:
    """Return the memory of a contiguous CPU tensor."""
    return x.detach().view(-1).view(torch.uint8).numpy() if x.numel() else np.empty(0, np.uint8)


def from_bytes(data: Bytes, dtype: torch.dtype) -> Tensor:
    """Return a new tensor whose `as_bytes` is `data`, which need not be aligned."""
    x = torch.empty(data.size // dtype.itemsize, dtype=dtype)
    as_bytes(x)[:] = data
    return x


def _blocks(x: Tensor, size: int) -> Tensor:
    """Return x as [ceil(n / size), size], filled up with zeros."""
    missing = -x.numel() % size
    return torch.nn.functional.pad(x, (0, missing)).view(-1, size) if missing else x.view(-1, size)


def _finite(x: Tensor, which: str = "") -> Tensor:
    if math.isfinite(x.sum().item()):
        return x
    if not all(map(torch.isfinite, x.aminmax())):  # finite numbers may have no finite sum; nan makes both nan
        raise ValueError(f"expected finite numbers{' ' * bool(which)}{which}, got nan or inf")
    return x
