"""What tests of messages share: states without a random generator, and messages changed on purpose."""

import numpy as np
import torch

from sparse_engine.model.model import Entry, Layout, Model
from sparse_engine.wire import message
from sparsefl.kernels.checksum import checksum

HEADER = 64
LAYOUT = Layout(
    ("conv.weight", "wide.weight", "full.weight", "empty.weight"),
    ((5, 3, 3, 3), (40, 33), (9, 2), (3, 3)),
    (
        Entry("conv.bias", (5,), torch.float32),
        Entry("shortcut.weight", (4, 5), torch.float32),
        Entry("norm.weight", (3,), torch.float32),
        Entry("steps", (), torch.int64),
    ),
)


def state_of(shift: int = 0) -> Model:
    """A small model of every kind of tensor; other `shift`, other mask and values."""
    i = np.arange(LAYOUT.segments.numel)
    mask = (i * 2654435761 + shift * 97 >> 7) % 8 < 3
    lo, hi, end = LAYOUT.segments.dense[2:].tolist()
    mask[lo:hi], mask[hi:end] = True, False
    masks = torch.from_numpy(mask).split(LAYOUT.segments.sizes)
    bitmap = LAYOUT.bitmap_of(
        {n: m.view(s) for n, m, s in zip(LAYOUT.names, masks, LAYOUT.shapes, strict=True)}
    )
    return Model(
        LAYOUT, bitmap, _numbers(bitmap.nnz, shift), _numbers(28, shift + 1), torch.tensor([2**40 + shift])
    )


def _numbers(n: int, shift: int) -> torch.Tensor:
    x = (np.arange(n) * 7919 + shift * 31) % 1009 - 504
    return torch.from_numpy((x / 4096 * (1 + np.arange(n) % 7)).astype(np.float32))


def same(a: Model, b: Model) -> bool:
    ours, theirs = a.tensors(), b.tensors()
    return all(ours[name].equal(theirs[name]) for name in ours)


def repaired(blob: bytes) -> bytes:
    """With a checksum that fits, as an enemy would write it; as far as there is a header."""
    data = bytearray(blob)
    if len(data) < HEADER:
        return blob
    sizes = np.frombuffer(data, "<u8", 3, 40)
    ends = [HEADER, *(min(len(data), HEADER + sum(map(int, sizes[: i + 1]))) for i in range(3))]
    parts = [data[16:HEADER], *(data[a:b] for a, b in zip(ends, ends[1:], strict=False))]
    value = int.from_bytes(data[:8], "little")
    for part in parts:
        value = checksum(np.frombuffer(bytes(part), np.uint8), value)
    data[8:16] = value.to_bytes(8, "little")
    return bytes(data)


def sections(blob: bytes) -> list[bytes]:
    """mask, values, rest"""
    header = message.inspect(blob)
    a, b = HEADER + header.mask_bytes, len(blob) - header.rest_bytes
    return [blob[HEADER:a], blob[a:b], blob[b:]]


def forged(blob: bytes, *, header: dict[int, bytes] | None = None, **changed: bytes) -> bytes:
    """`blob` with other sections, or other bytes at places of its header, everything else made to fit."""
    parts = dict(zip(("mask", "values", "rest"), sections(blob), strict=True)) | changed
    head = bytearray(blob[:HEADER])
    head[40:64] = b"".join(len(part).to_bytes(8, "little") for part in parts.values())
    for at, new in (header or {}).items():
        head[at : at + len(new)] = new
    return repaired(bytes(head) + b"".join(parts.values()))
