"""A launch with arguments as Python has them."""

import struct
from typing import Any

from virtual_card.card import Card
from virtual_card.compiled import Binary


def launch(card: Card, binary: Binary, grid: tuple[int, ...], types: list[str], args: tuple) -> None:
    """Tensors and numbers of these Triton types ("*fp32", "i64") to a kernel."""
    bits = [_bits(kind, value) for kind, value in zip(types, args, strict=True)]
    card.launch(binary.ptx, grid, bits, binary.shared)


def _bits(kind: str, value: Any) -> int:
    if kind.startswith("*"):
        if value.device.type != "cuda":
            raise ValueError(f"expected tensors on the card, got one on {value.device}")
        return value.data_ptr()
    if kind in ("fp32", "fp64"):
        number, bits = ("<f", "<I") if kind == "fp32" else ("<d", "<Q")
        return struct.unpack(bits, struct.pack(number, value))[0]
    return int(value) % (1 << int(kind[1:]))
