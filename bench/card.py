"""A model of a training step on an NVIDIA RTX 4090: arithmetic, not a measurement. Nobody has run it.

A pass takes the longer of its arithmetic and its memory traffic, and a launch on top:

    seconds = max(FLOP / rate, bytes / bandwidth) + launch

Rates are what libraries and kernels like ours reach elsewhere, as shares of the card's peaks; `make
gpu-check` measures some of them. Dense passes count all weights. Bitmap passes compute like dense ones and
read the stored weights alone. CSR passes compute on stored weights only, on CUDA cores, and so does our
weight gradient, where every product is read anew.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from sparse_engine.program import steps
from sparse_engine.program.steps import Graph


@dataclass(frozen=True)
class Card:
    """FLOP/s that passes reach, bytes/s, and seconds per launch."""

    name: str
    fp32: float  # cuDNN on CUDA cores
    tf32: float  # cuDNN, cuBLAS on tensor cores
    fp16: float
    csr: float  # of stored weights, forward and the input gradient
    csr_weight: float  # the weight gradient
    memory: float
    cache: float  # bandwidth of the second level
    cache_bytes: float  # of it that a group can use
    launch: float  # one after the other, by torch
    node: float  # of a CUDA graph
    call: float  # an ATen call of eager PyTorch on its host


RTX4090 = Card(
    "RTX 4090",
    fp32=41e12,
    tf32=50e12,
    fp16=82e12,
    csr=17.5e12,
    csr_weight=8.8e12,
    memory=0.9e12,
    cache=4e12,
    cache_bytes=55e6,
    launch=2.5e-6,
    node=2e-6,
    call=7.5e-6,
)
CARDS = {"rtx4090": RTX4090}
ASSUMED = (
    "cuDNN reaches 41 (fp32), 50 (TF32), 82 (fp16) TFLOP/s of 82.6, 82.6, 165; CSR 17.5 on stored weights, "
    "its weight gradient 8.8; 0.9 of 1.008 TB/s; L2 4 TB/s and 55 MB; 2.5 us per launch, 2 us per node of a "
    "CUDA graph; 7.5 us per call of eager PyTorch"
)


class Pass(NamedTuple):
    """Dense FLOP, bytes of activations, bytes of dense weights; weight: is it the weight gradient?"""

    flop: float
    images: float
    weights: float
    weight: bool


def passes(graph: Graph, batch: int) -> Iterator[Pass]:
    """Forward, input gradient and weight gradient of every layer; the first has no input gradient."""
    for step in graph.steps:
        if not isinstance(step, steps.Conv):
            continue
        x, y = (prod(graph.values[v]) * batch for v in (step.x, step.y))
        geometry = step.geometry
        out = geometry.output_size(*graph.values[step.x][1:])  # before a pool that a later step is
        z = geometry.out_channels * prod(out)
        weights = prod(step.weight.shape)
        flop = 2.0 * batch * weights * prod(out)
        for direction in ("forward", "input", "weight")[:: 2 if step.x == 0 else 1]:
            yield Pass(flop, 4 * (x + max(y, z * batch)), 4 * weights, direction == "weight")


def dense(card: Card, p: Pass, rate: float, size: float = 1.0) -> float:
    """Seconds of a dense pass; `size`: of a number, over float32's."""
    return max(p.flop / rate, size * (p.images + p.weights) / card.memory) + card.launch


def bitmap(card: Card, p: Pass, density: float) -> float:
    """Seconds of a pass on tensor cores that reads stored weights and a bit per weight."""
    read = density * p.weights + p.weights / 32
    return max(p.flop / card.tf32, (p.images + read) / card.memory) + card.launch


def csr(card: Card, p: Pass, density: float) -> float:
    """Seconds of a pass on stored weights, of 4 bytes and an index of 4."""
    rate = card.csr_weight if p.weight else card.csr
    return max(density * p.flop / rate, (p.images + 2 * density * p.weights) / card.memory) + card.launch
