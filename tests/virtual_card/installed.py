"""The code under test on the virtual card: launches run there, cuda:0 is there."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

from sparsefl.kernels import tile
from virtual_card import compiled
from virtual_card.card import Card
from virtual_card.launch import launch
from virtual_card.tensors import MEMORY, tensors_of

NAME = "virtual card"
PROPERTIES = SimpleNamespace(  # an RTX 4090's
    name=NAME, major=8, minor=9, total_memory=24 << 30, L2_cache_size=72 << 20, uuid="virtual"
)


@contextmanager
def installed(*, seed: int = 0, jit: bool = False) -> Iterator[Card]:
    """Everything inside runs on a virtual card, which is returned with its counts.

    seed  of the noise in registers and shared memory that nobody wrote; results must not depend on it
    jit   Triton compiles and launches at run time (not under its interpreter); else launches of `tile.Config`
          take what was compiled ahead of time
    """
    card = Card(MEMORY, seed=seed)
    with (
        _driving(card) if jit else mock.patch.object(tile.Config, "run", _ahead_of_time(card)),
        mock.patch.object(torch.cuda, "is_available", lambda: True),
        mock.patch.object(torch.cuda, "current_device", lambda: 0),
        mock.patch.object(torch.cuda, "device_count", lambda: 1),
        mock.patch.object(torch.cuda, "get_device_name", lambda *_: NAME),
        mock.patch.object(torch.cuda, "get_device_properties", lambda *_: PROPERTIES),
        mock.patch.object(torch.cuda, "mem_get_info", lambda *_: (20 << 30, PROPERTIES.total_memory)),
        mock.patch.object(torch.cuda, "memory_reserved", lambda *_: 0),
        mock.patch.object(torch.cuda, "memory_allocated", lambda *_: 0),
        mock.patch.object(torch.Tensor, "pin_memory", lambda self, *_: self),
        tensors_of(card),
    ):
        yield card


def _ahead_of_time(card: Card) -> Any:
    def run(config: tile.Config, programs: int, *args: Any) -> None:
        binary = compiled.binaries()[compiled.key(config)]
        launch(card, binary, (programs,), config.types.split(), args)

    return run


def _driving(card: Card) -> Any:
    from virtual_card.driver import driving  # imports the compiler, which only this needs

    return driving(card)
