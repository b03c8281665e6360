"""The code under test on the virtual card: launches of `tile.Config` run there, cuda:0 is there."""

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch

from sparsefl.kernels import tile
from virtual_card import compiled
from virtual_card.card import Card
from virtual_card.tensors import MEMORY, forget_freed, tensors_of


@contextmanager
def installed(*, seed: int = 0) -> Iterator[Card]:
    """Everything inside runs on a virtual card, which is returned with its counts. seed: of the noise in
    registers and shared memory that nobody wrote; results must not depend on it."""
    card = Card(MEMORY, seed=seed)

    def run(config: tile.Config, programs: int, *args: Any) -> None:
        binary = compiled.binaries()[compiled.key(config)]
        launch(card, binary, (programs,), config.types.split(), args)

    with (
        mock.patch.object(tile.Config, "run", run),
        mock.patch.object(torch.cuda, "is_available", lambda: True),
        mock.patch.object(torch.cuda, "current_device", lambda: 0),
        mock.patch.object(torch.Tensor, "pin_memory", lambda self, *_: self),
        tensors_of(card),
    ):
        yield card


def launch(card: Card, binary: compiled.Binary, grid: tuple[int, ...], types: list[str], args: tuple) -> None:
    """One launch with arguments as Python has them: tensors and numbers."""
    forget_freed()
    bits = [_bits(kind, value) for kind, value in zip(types, args, strict=True)]
    card.launch(binary.ptx, grid, bits, binary.shared)


def _bits(kind: str, value: Any) -> int:
    if kind.startswith("*"):
        if value.device.type != "cuda":
            raise ValueError(f"Pointer argument cannot be accessed from Triton (cpu tensor?): {value.device}")
        return value.data_ptr()
    if kind in ("fp32", "fp64"):
        size = kind == "fp32"
        return struct.unpack("<I" if size else "<Q", struct.pack("<f" if size else "<d", value))[0]
    return int(value) % (1 << int(kind[1:]))
