"""Layers to measure: drawn at random, for a processor's constants, or those that a network runs."""

import random
from collections.abc import Iterator
from math import log2

import torch
from torch import nn

from sparse_engine.choice.clock import Image
from sparse_engine.choice.cost import Case
from sparse_engine.choice.plan import Choice, Plan, use_plan
from sparsefl.kernels.sparse_conv import DIRECTIONS, Conv, Geometry

_CHANNELS = (1, 3, 6, 8, 12, 16, 20, 24, 32, 48, 64, 96, 128, 160, 192, 256, 384, 512)
_SIZES = (1, 2, 4, 5, 7, 8, 10, 14, 16, 20, 28, 32, 56)
_BATCHES = (1, 1, 2, 4, 8, 10, 16, 20, 32, 32, 32, 50, 64, 128)
_DENSITIES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.65, 0.8, 0.9, 1.0, 1.0)
_KERNELS = {3: 5.0, 1: 2.5, 5: 0.8, 7: 0.5, 0: 2.2}  # 0: a linear layer; and how often
_FLOP = 2e4, 2.6e9  # of a dense forward pass
_WEIGHTS = 6_000_000


def at_random(seed: int = 0) -> Iterator[tuple[Geometry, Image]]:
    """Layers as networks have them, without end."""
    draw = random.Random(seed)
    while True:
        conv, image = _drawn(draw)
        height, width = conv.output_size(*image[:2])
        flop = 2 * conv.shape.numel() * height * width * image[2]
        if _FLOP[0] < flop < _FLOP[1] and conv.shape.numel() < _WEIGHTS:
            yield conv, image


def _drawn(draw: random.Random) -> tuple[Geometry, Image]:
    (side,) = draw.choices([*_KERNELS], [*_KERNELS.values()])
    batch, density = draw.choice(_BATCHES), draw.choice(_DENSITIES)
    if side == 0:
        out, into = (2 ** draw.uniform(4, 12.2) for _ in range(2))
        if draw.random() < 0.5:
            out, into = 2.0 ** round(log2(out)), 2.0 ** round(log2(into))
        return Geometry(int(out), int(into), density=density), (1, 1, batch)
    out = into = draw.choice(_CHANNELS)
    if draw.random() < 0.5:
        into = draw.choice(_CHANNELS)
    stride = 2 if draw.random() < (0.25 if side > 1 else 0.08) else 1
    conv = Geometry(out, into, (side, side), stride, (side // 2, side // 2), density=density)
    size = draw.choice(_SIZES)
    return conv, (size, size, batch)


class Seen(Plan):
    """Keeps every layer and direction that asks for a kernel; chooses as `rule` does."""

    def __init__(self, like: Plan) -> None:
        super().__init__(rule=like.rule, threads=like.threads)
        self.cases: dict[Case, None] = {}

    def choice(
        self,
        conv: Conv | Geometry,
        direction: str,
        image: Image,
        bf16: bool = False,
        *,
        native: bool = False,
    ) -> Choice:
        sizes = conv.out_channels, conv.in_channels, conv.kernel, conv.stride, conv.padding, conv.dilation
        self.cases[Case(Geometry(*sizes, conv.density), direction, image)] = None
        return super().choice(conv, direction, image, bf16, native=native)


def of_network(net: nn.Module, images: torch.Tensor, like: Plan) -> list[Case]:
    """Return the layers and directions of a sparsified network that a step on `images` asks a kernel for, and
    the gradients of whole weights that growth takes."""
    seen = Seen(like)
    with use_plan(seen):
        net(images).sum().backward()
    weights = {case.conv: case.image for case in seen.cases if case.direction == DIRECTIONS[2]}
    for conv, image in weights.items():
        sizes = conv.out_channels, conv.in_channels, conv.kernel, conv.stride, conv.padding, conv.dilation
        seen.cases[Case(Geometry(*sizes, 1.0), DIRECTIONS[2], image)] = None
    return [*seen.cases]
