"""Which graphs the GPU runs: chains of conv2d and linear layers with bias, ReLU and max pool, to logits.

What a chain has no place for is `NotOnGpu`, with the reason in a sentence.
"""

from dataclasses import replace
from typing import NamedTuple

from sparse_engine.model.model import Layout
from sparse_engine.program import steps
from sparse_engine.program.steps import Graph
from sparsefl.kernels.errors import NoKernel
from sparsefl.kernels.group import Layer, Network


class NotOnGpu(NoKernel):
    """There is no GPU version of something that was asked for; the CPU has one."""


class Chain(NamedTuple):
    """A network in the order of its weights, and its layers' numbers from first to last."""

    network: Network
    order: tuple[int, ...]


def chain(graph: Graph) -> Chain:
    """Return `graph` as layers of a group."""
    found: list[tuple[int, Layer]] = []
    value = 0
    for step in graph.steps:
        if step.inputs != (value,):
            raise NotOnGpu(f"{step.name}: there is no GPU version of values that two steps read")
        value = step.y
        if isinstance(step, steps.Conv):
            found.append(_layer(step, graph))
        elif isinstance(step, steps.MaxPool):
            found[-1:] = [_pooled(step, found[-1:])]
        elif not isinstance(step, steps.Flatten):
            raise _missing(step, graph)
    numbers = [number for number, _ in found]
    layers = [layer for _, layer in sorted(found, key=lambda each: each[0])]
    _check(graph.layout, layers, found[-1][1])
    return Chain(Network(tuple(layers), graph.layout.num_floats), tuple(numbers))


def _layer(step: steps.Conv, graph: Graph) -> tuple[int, Layer]:
    if step.weight.segment is None or step.groups != 1:
        raise NotOnGpu(f"{step.name}: there is no GPU version of weights that stay dense, or of groups")
    size = graph.values[step.x][1:]
    return step.weight.segment, Layer(replace(step.geometry, density=1.0), size, step.bias, step.relu)


def _pooled(step: steps.MaxPool, before: list[tuple[int, Layer]]) -> tuple[int, Layer]:
    window = step.window
    if not before or before[0][1].pool != (1, 1):
        raise NotOnGpu(f"{step.name}: there is no GPU version of a pool that follows no convolution")
    if window.kernel != window.stride or any(window.padding):
        raise NotOnGpu(f"{step.name}: there is no GPU version of pool windows that overlap or are padded")
    number, layer = before[0]
    try:
        return number, replace(layer, pool=window.kernel, relu=layer.relu or step.relu)
    except ValueError as wrong:
        raise NotOnGpu(f"{step.name}: there is no GPU version of this pool ({wrong})") from None


def _missing(step: steps.Step, graph: Graph) -> NotOnGpu:
    return NotOnGpu(f"{step.name}: there is no GPU version of {step.describe(graph.values)} yet")


def _check(layout: Layout, layers: list[Layer], last: Layer) -> None:
    if last.gated or last.out != (1, 1):
        raise NotOnGpu("there is no GPU version of a network whose last layer is not linear")
    trained = sum(layer.geometry.out_channels for layer in layers if layer.bias is not None)
    if trained != layout.num_floats or layout.num_integers or len(layers) != len(layout.names):
        raise NotOnGpu("there is no GPU version of buffers, or of weights besides those of conv2d and linear")
