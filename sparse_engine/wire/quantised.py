"""A model, or a difference of two, in b bits per number: unbiased, with one scale per 256 numbers (QSGD,
Alistarh et al., NeurIPS 2017, in buckets).

    Q(x) = s c,   c = floor(x / s + u),   u ~ U[0, 1),   s = max |x| / L of 256 in a row,   L = 2^(b-1) - 1
    E Q(x) = x,   E |Q(x) - x|^2 <= omega |x|^2,   omega = min(256 / (4 L^2), sqrt(256) / L)
    Q / tau, tau = 1 + omega, is a contraction:   E |Q(x) / tau - x|^2 <= (1 - 1 / tau) |x|^2

    at   bytes
     0     4   magic "SPFQ"
     4     1   version, 1
     5     1   b, from 2 to 8
     6     2   0
     8     8   XXH64 of what follows; its seed is bytes 0 to 7
    16     8   how many numbers
    24     .   scales, float32
     .     .   c + L, b bits each: 8 of them are b bytes, the first one in the lowest bits; 0 after the last

Little-endian. Stored weights come first, then the other float tensors; integers and masks do not travel.
"""

from dataclasses import replace
from math import sqrt
from struct import Struct

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sparse_engine.model.model import Model
from sparse_engine.wire.header import WireError
from sparse_engine.wire.values import BLOCK, Bytes, as_bytes, from_bytes
from sparsefl.kernels.checksum import checksum

MAGIC, VERSION, BITS = b"SPFQ", 1, range(2, 9)
_START, _HEADER = 8, Struct("<4sBBHQQ")


def levels(bits: int) -> int:
    """Return L: codes run from -L to L."""
    if bits not in BITS:
        raise ValueError(f"expected from {BITS[0]} to {BITS[-1]} bits per number, got {bits}")
    return 2 ** (bits - 1) - 1


def damping(bits: int) -> float:
    """Return tau: Q / tau is a contraction for every x."""
    return 1 + min(BLOCK / (4 * levels(bits) ** 2), sqrt(BLOCK) / levels(bits))


def num_bytes(n: int, bits: int) -> int:
    """Return the bytes of a message of n numbers."""
    return _HEADER.size + 4 * -(-n // BLOCK) + bits * -(-n // 8)


def encode(state: Model, bits: int, generator: torch.Generator) -> bytes:
    """Return the message of Q(x) for every number x in `state`; `generator` draws u."""
    x = torch.cat([state.values, state.rest])
    scales, codes = _quantised(x, levels(bits), generator)
    body = np.concatenate([_uint64(x.numel()), as_bytes(scales), _packed(codes, bits)])
    start = _HEADER.pack(MAGIC, VERSION, bits, 0, 0, 0)[:_START]
    return start + _checksum(start, body).to_bytes(8, "little") + body.tobytes()


def decode(blob: bytes, like: Model) -> Model:
    """Return the model in a message, on the pattern of `like`; raise a WireError for anything else."""
    data = np.frombuffer(blob, np.uint8)
    n = like.values.numel() + like.rest.numel()
    bits = _checked(data, n)
    top, split = levels(bits), _HEADER.size + 4 * -(-n // BLOCK)
    scales = from_bytes(data[_HEADER.size : split], torch.float32)
    codes = _unpacked(data[split:], bits)
    if codes[n:].any() or (codes[:n] > 2 * top).any():
        raise WireError(f"expected {n} codes up to {2 * top} and zeros, got others")
    if not bool(torch.isfinite(scales * top).all()) or bool((scales < 0).any()):
        raise WireError("expected scales of finite numbers, from 0 on, got others")
    x = _blocks(torch.from_numpy(codes[:n].astype(np.float32)) - top) * scales[:, None]
    values, rest = x.view(-1)[:n].split([like.values.numel(), like.rest.numel()])
    return replace(like, values=values.clone(), rest=rest.clone(), integers=like.integers.clone())


def _quantised(x: Tensor, top: int, generator: torch.Generator) -> tuple[Tensor, NDArray[np.uint8]]:
    """Return the scales, and codes from 0 to 2 `top`."""
    blocks = _blocks(x)
    scales = blocks.abs().amax(1, keepdim=True) / top
    if not bool(torch.isfinite(scales).all()):
        raise ValueError("expected finite numbers, got nan or inf")
    codes = blocks / scales.where(scales > 0, torch.inf)
    codes.add_(torch.rand(codes.shape, generator=generator)).floor_().clamp_(-top, top)
    return scales.view(-1), (codes + top).to(torch.uint8).view(-1)[: x.numel()].numpy()


def _packed(codes: NDArray[np.uint8], bits: int) -> Bytes:
    """Return the codes packed: 8 codes make one number, whose lowest bytes are kept."""
    if bits == 8:
        return np.pad(codes, (0, -codes.size % 8))
    eight = np.pad(codes, (0, -codes.size % 8)).reshape(-1, 8).astype("<u8")
    words = np.bitwise_or.reduce(eight << _shifts(bits), axis=1, dtype="<u8")
    return np.ascontiguousarray(words.view(np.uint8).reshape(-1, 8)[:, :bits]).reshape(-1)


def _unpacked(data: Bytes, bits: int) -> NDArray[np.uint8]:
    if bits == 8:
        return data
    words = np.zeros((data.size // bits, 8), np.uint8)
    words[:, :bits] = data.reshape(-1, bits)
    eight = (words.view("<u8") >> _shifts(bits)) & np.uint64(2**bits - 1)
    return eight.astype(np.uint8).reshape(-1)


def _shifts(bits: int) -> NDArray[np.uint64]:
    return np.arange(0, 8 * bits, bits, dtype=np.uint64)


def _checked(data: Bytes, n: int) -> int:
    """Return the bits per number of a message of n numbers, once it is checked."""
    if data.size < _HEADER.size:
        raise WireError(f"expected at least the {_HEADER.size} bytes of a header, got {data.size}")
    magic, version, bits, zero, found, count = _HEADER.unpack(data[: _HEADER.size].tobytes())
    if (magic, version, zero) != (MAGIC, VERSION, 0) or bits not in BITS:
        raise WireError(f"expected a quantised model of version {VERSION}, got {data[:8].tobytes()!r}")
    if count != n or data.size != num_bytes(n, bits):
        raise WireError(f"expected {n} numbers in {num_bytes(n, bits)} bytes, got {count} in {data.size}")
    if found != _checksum(data[:_START].tobytes(), data[16:]):
        raise WireError(f"expected the checksum {found:016x}, got another: it is damaged")
    return bits


def _checksum(start: bytes, body: Bytes) -> int:
    return checksum(body, int.from_bytes(start, "little"))


def _uint64(n: int) -> Bytes:
    return np.frombuffer(n.to_bytes(8, "little"), np.uint8)


def _blocks(x: Tensor) -> Tensor:
    return torch.nn.functional.pad(x, (0, -x.numel() % BLOCK)).view(-1, BLOCK)
