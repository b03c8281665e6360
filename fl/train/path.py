"""How clients are trained: as a program, layer by layer, or dense."""

from collections.abc import Sequence
from typing import NamedTuple

from torch import nn

import sparse_engine as se
from fl import config
from sparse_engine.program.capture import NotCaptured, capture
from sparse_engine.program.steps import Graph


class Path(NamedTuple):
    """`name`: program, layers or dense. `graph`: of a program. `where`: " on ..." where that is a GPU."""

    name: str
    why: str
    graph: Graph | None = None
    where: str = ""

    def __str__(self) -> str:
        return f"{self.name}{self.where} ({self.why})"


def choose(training: config.Training, net: nn.Module, sample: Sequence[int], layout: se.Layout) -> Path:
    """A program if the network is one; layer by layer if it is not, or if the configuration says so."""
    if training.kernels == "dense":
        return Path("dense", "training.kernels = dense")
    if training.path == "layers":
        return Path("layers", "training.path = layers" + _numbers(training))
    try:
        graph = capture(net, tuple(sample), layout)
    except NotCaptured as reason:
        return Path("layers", f"no program: {reason}" + _numbers(training))
    return Path("program", f"{len(graph.steps)} steps" + _numbers(training), graph)


def _numbers(training: config.Training) -> str:
    """What besides the path decides the numbers."""
    if training.precision == "fp32":
        return ""
    return f"; {training.precision} {'with' if se.has_bf16() else 'without'} AVX512_BF16"
