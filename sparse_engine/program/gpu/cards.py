"""The GPUs of this machine: which there are, whether kernels run on them, and why not.

cpu   cuda (the first one)   cuda:1   all (every GPU)   several with commas: all,cpu
"""

import importlib.util
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from sparsefl.kernels.errors import NoKernel

OLDEST = (8, 0)  # compute capability that kernels are compiled for and tested on: sm_80
DRIVER = Path("/proc/driver/nvidia/version")


class NoCard(NoKernel):
    """A GPU was asked for that is not there, or that kernels cannot use."""


class Card(NamedTuple):
    """A GPU as torch sees it; `memory` and `cache` (the second level's) in bytes."""

    device: str
    name: str
    capability: tuple[int, int]
    memory: int
    cache: int

    @property
    def arch(self) -> str:
        return "sm_{}{}".format(*self.capability)


def found() -> list[Card]:
    """Return all GPUs that torch sees, usable or not."""
    number = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return [_card(i) for i in range(number)]


def named(text: str) -> tuple[str, ...]:
    """Return the devices that `text` names, GPUs first, by their full names; NoCard where one cannot be used.

    >>> from sparse_engine.program.gpu import cards
    >>> cards.named("cpu")
    ('cpu',)
    """
    asked = [part.strip() for part in text.split(",")]
    devices = dict.fromkeys(device for part in asked for device in _named(part))
    return tuple(sorted(devices, key=lambda device: device == "cpu"))


def usable(device: str) -> Card:
    """Return the GPU of that full name; NoCard says why it cannot be used."""
    why = absent() or without_triton()
    if why is not None:
        raise NoCard(f"expected a GPU for {device}, got none: {why}")
    cards, number = found(), int(device.partition(":")[2])
    if number >= len(cards):
        raise NoCard(f"expected a GPU out of {[card.device for card in cards]}, got {device}")
    problem = unfit(cards[number])
    if problem is not None:
        raise NoCard(problem)
    return cards[number]


def unfit(card: Card) -> str | None:
    """Return why kernels cannot run on a GPU that is there; None: they can."""
    if card.capability < OLDEST:
        oldest = "sm_{}{}".format(*OLDEST)
        return (
            f"expected a GPU from {oldest} on (A100, RTX 30), got {card.device}, {card.name} with {card.arch}"
        )
    if torch.version.cuda is not None and not _built_for(card.capability, torch.cuda.get_arch_list()):
        return f"expected a torch that was built for {card.arch} ({card.name}), got {torch.__version__}"
    return None


def absent() -> str | None:
    """Return why torch sees no GPU; None: it sees one."""
    if torch.cuda.is_available() and torch.cuda.device_count():
        return None
    if torch.version.cuda is None:
        return f"this torch ({torch.__version__}) was built without CUDA"
    if os.environ.get("CUDA_VISIBLE_DEVICES") is not None:
        return f"torch sees no GPU with CUDA_VISIBLE_DEVICES={os.environ['CUDA_VISIBLE_DEVICES']!r}"
    if not DRIVER.exists():
        return f"there is no NVIDIA driver ({DRIVER} is missing)"
    return f"there is a driver, but torch sees no GPU: it may be older than CUDA {torch.version.cuda} wants"


def without_triton() -> str | None:
    """Return a sentence if triton is missing, which compiles the kernels; None: it is there."""
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed, which compiles the kernels of GPUs"
    return None


def free_memory(device: str) -> int:
    """Return the bytes that are free on a GPU, those that torch keeps for itself included."""
    free, _ = torch.cuda.mem_get_info(device)
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(free + max(0, kept))


def _named(part: str) -> list[str]:
    if part == "cpu":
        return ["cpu"]
    if part == "all":
        usable("cuda:0")
        return [usable(card.device).device for card in found()]
    if re.fullmatch(r"cuda(:[0-9]{1,3})?", part):
        return [usable(part if ":" in part else "cuda:0").device]
    raise NoCard(f"expected cpu, cuda, cuda:NUMBER or all, or several with commas, got {part!r}")


def _card(number: int) -> Card:
    told = torch.cuda.get_device_properties(number)
    cache = getattr(told, "L2_cache_size", 0)
    return Card(f"cuda:{number}", told.name, (told.major, told.minor), told.total_memory, cache)


def _built_for(capability: tuple[int, int], archs: Sequence[str]) -> bool:
    """Machine code runs on later GPUs of the same generation; intermediate code on all later ones."""
    for arch in archs:
        kind, _, number = arch.partition("_")
        built = int(number[:-1]), int(number[-1]) if number[-1:].isdigit() else 0
        if kind == "compute" and built <= capability:
            return True
        if kind == "sm" and built[0] == capability[0] and built[1] <= capability[1]:
            return True
    return False
