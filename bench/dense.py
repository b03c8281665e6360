"""Training steps of dense PyTorch, as users would pick them: two layouts, torch.compile, bf16 autocast.

    torch                    contiguous, eager, float32
    torch channels_last      the other layout
    torch compiled           torch.compile
    ... bf16                 each of them under torch.autocast("cpu", torch.bfloat16): weights stay float32

Their speed does not depend on our masks, so one set serves all densities. What cannot run here says why.
"""

from collections.abc import Callable
from contextlib import nullcontext
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sparsefl.bench import networks

RATE, DECAY = 1e-4, 5e-4
BF16 = " bf16"
Step = Callable[[], float]


class Rivals(NamedTuple):
    """Steps by name, and the reasons of those that do not run here."""

    steps: dict[str, Step]
    skipped: dict[str, str]


def rivals(name: str, classes: int, images: Tensor, labels: Tensor, *, compiled: bool = True) -> Rivals:
    """All of them for one network and batch. Each is checked: the losses of its first steps are eager's."""
    found = Rivals({}, {})
    wanted: list[float] | None = None
    for kind in ("torch", "torch channels_last", *(["torch compiled"] if compiled else [])):
        for precision in ("", BF16):
            step = _made(name, classes, images, labels, kind, bf16=bool(precision))
            try:
                losses = [step() for _ in range(2)]
            except Exception as wrong:  # whatever a compiler that is not there raises
                if "compiled" not in kind:
                    raise
                found.skipped[kind + precision] = (
                    f"torch.compile: {type(wrong).__name__}: {wrong}".splitlines()[0]
                )
                continue
            wanted = wanted or losses
            check(kind + precision, losses, wanted)
            found.steps[kind + precision] = step
    return found


def check(who: str, losses: list[float], wanted: list[float]) -> None:
    """A step that computes something else gets no time."""
    most = 0.05 if who.endswith(BF16) else 1e-3
    if not all(abs(a - b) <= most * abs(b) for a, b in zip(losses, wanted, strict=True)):
        raise AssertionError(f"{who}: expected the losses {wanted} of torch, got {losses}")


def _made(name: str, classes: int, images: Tensor, labels: Tensor, kind: str, *, bf16: bool) -> Step:
    torch.manual_seed(0)
    net = networks.build(name, classes)
    for module in net.modules():  # its draws would make losses differ; it is a small part of a step
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    layout = torch.channels_last if "channels_last" in kind else torch.contiguous_format
    net, x = net.to(memory_format=layout), images.to(memory_format=layout)
    forward = torch.compile(net, dynamic=False) if "compiled" in kind else net
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE, weight_decay=DECAY)

    def step() -> float:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16) if bf16 else nullcontext():
            loss = F.cross_entropy(forward(x), labels)
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step
