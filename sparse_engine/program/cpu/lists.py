"""The lists of native steps of a graph: training (forward, loss, backward), evaluation, growth.

Flatten is no step. Backward goes through the steps from the last to the first.
"""

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

import torch

from sparse_engine.program import steps
from sparse_engine.program.cpu import conv_lists
from sparse_engine.program.cpu.convs import ConvPlan
from sparse_engine.program.cpu.listing import NONE, List
from sparse_engine.program.cpu.memory import Buffer, Planned
from sparse_engine.program.steps import Graph, Step
from sparsefl.kernels.native import extension

_ADAPTIVE = (0, 0), (1, 1), (0, 0)  # kernel, stride, padding


def make(graph: Graph, convs: dict[int, ConvPlan], lanes: int, mode: str, itemsize: int) -> list[Planned]:
    """Return the list for "train", "evaluate" or "grow"; `convs` by the number of their step, `itemsize`:
    bytes of an entry of images."""
    made = List(graph, convs, lanes, mode, itemsize)
    made.value[0] = replace(made.new(0, "input"), pinned=True)
    trained = made.trained_values()
    for i, step in enumerate(graph.steps):
        _FORWARD[type(step)](made, i, step)
    last = graph.steps[-1].y
    if mode == "evaluate":
        made.evaluate(last)
        return made.planned
    made.loss(last)
    for i, step in reversed([*enumerate(graph.steps)]):
        if step.y in made.gradient:
            made.needed = [x in trained for x in step.inputs]
            _BACKWARD[type(step)](made, i, step)
            made.holders[made.gradient[step.y]].discard(step.y)
    return made.planned


# Norms.


def _norm_shape(made: List, step: Step, groups: int) -> Any:
    channels, height, width = made.graph.values[step.x]
    return extension().NormShape(channels=channels, groups=groups, size=height * width, batch=made.lanes)


def _group_norm(made: List, i: int, step: steps.GroupNorm) -> None:
    made.value[step.y] = made.new(step.y)
    statistics = {name: Buffer(step.groups * made.lanes, name) for name in ("mean", "rstd")}
    made.saved[i] = {
        "shape": _norm_shape(made, step, step.groups),
        **statistics,
        "gamma": _at(step.gamma),
        "beta": _at(step.beta),
        "relu": step.relu,
    }
    values = {"x": made.value[step.x], "y": made.value[step.y]}
    made.add("GroupNorm", **made.saved[i], **values, eps=step.eps)


def _batch_norm(made: List, i: int, step: steps.BatchNorm) -> None:
    made.value[step.y] = made.new(step.y)
    statistics = {name: Buffer(step.channels, name) for name in ("mean", "rstd")}
    made.saved[i] = {
        "shape": _norm_shape(made, step, 1),
        **statistics,
        "gamma": _at(step.gamma),
        "beta": _at(step.beta),
        "relu": step.relu,
    }
    made.add(
        "BatchNorm",
        **made.saved[i],
        x=made.value[step.x],
        y=made.value[step.y],
        scratch=made.images(2 * made.size(step.x), "samples of a batch norm"),
        running_mean=_at(step.mean),
        running_var=_at(step.var),
        count=_at(step.count),
        eps=step.eps,
        momentum=-1.0 if step.momentum is None else step.momentum,
    )


def _norm_backward(made: List, i: int, step: steps.GroupNorm | steps.BatchNorm) -> None:
    """Also where nobody needs dx: the gradients of gamma and beta come with it."""
    dx = made.over(step.y)
    fields = made.saved[i] | {"dy": made.gradient[step.y], "x": made.value[step.x], "dx": dx}
    if isinstance(step, steps.BatchNorm):
        fields["scratch"] = made.images(3 * made.size(step.x), "samples of a batch norm")
    made.add(f"{type(step).__name__}Backward", **fields)
    made.replace(step.y, dx)
    if made.needed[0]:
        made.contribute(step.x, dx)


def _at(place: int | None) -> int:
    return NONE if place is None else place


# What is between.


def _relu(made: List, i: int, step: steps.Relu) -> None:
    made.value[step.y] = made.new(step.y)
    made.add("Relu", x=made.value[step.x], other=NONE, y=made.value[step.y], size=made.size(step.y))


def _relu_backward(made: List, i: int, step: steps.Relu) -> None:
    made.contribute(step.x, made.masked(step))


def _sum(made: List, i: int, step: steps.Add) -> None:
    made.value[step.y] = made.new(step.y)
    a, b, y, size = made.value[step.x], made.value[step.other], made.value[step.y], made.size(step.y)
    if step.relu:
        made.add("Relu", x=a, other=b, y=y, size=size)
    else:
        made.add("Add", a=a, b=b, y=y, size=size)


def _sum_backward(made: List, i: int, step: steps.Add) -> None:
    dy = made.masked(step) if step.relu else made.gradient[step.y]
    for x, needed in zip(step.inputs, made.needed, strict=True):
        if needed:
            made.contribute(x, dy)


def _pool_shape(made: List, step: steps.MaxPool | steps.AveragePool) -> Any:
    (channels, *size), (_, *out) = made.graph.values[step.x], made.graph.values[step.y]
    window = step.window
    kernel, stride, padding = (window.kernel, window.stride, window.padding) if window else _ADAPTIVE

    def axis(i: int) -> Any:
        sizes = {"in": size[i], "out": out[i], "kernel": kernel[i]}
        return extension().PoolAxis(**sizes, stride=stride[i], padding=padding[i])

    height, width = axis(0), axis(1)
    return extension().PoolShape(channels=channels, batch=made.lanes, height=height, width=width)


def _max_pool(made: List, i: int, step: steps.MaxPool) -> None:
    made.value[step.y] = made.new(step.y)
    wide = step.window.index_dtype != torch.uint8
    index = Buffer(made.size(step.y) // (1 if wide else 4) + 1, "places of maxima")
    made.saved[i] = {"shape": _pool_shape(made, step), "index": index, "wide": wide}
    values = {"x": made.value[step.x], "y": made.value[step.y]}
    made.add("MaxPool", **made.saved[i], **values, relu=step.relu)


def _max_pool_backward(made: List, i: int, step: steps.MaxPool) -> None:
    dy = made.masked(step) if step.relu else made.gradient[step.y]
    if made.needed[0]:
        dx = made.new(step.x, "gradient")
        made.add("MaxPoolBackward", **made.saved[i], dy=dy, dx=dx)
        made.contribute(step.x, dx)


def _average_pool(made: List, i: int, step: steps.AveragePool) -> None:
    made.value[step.y] = made.new(step.y)
    shape = _pool_shape(made, step)
    made.add("AveragePool", shape=shape, x=made.value[step.x], y=made.value[step.y], backward=False)


def _average_pool_backward(made: List, i: int, step: steps.AveragePool) -> None:
    if made.needed[0]:
        dx = made.new(step.x, "gradient")
        shape = _pool_shape(made, step)
        made.add("AveragePool", shape=shape, x=made.gradient[step.y], y=dx, backward=True)
        made.contribute(step.x, dx)


def _flatten(made: List, i: int, step: steps.Flatten) -> None:
    made.value[step.y] = made.value[step.x]


def _flatten_backward(made: List, i: int, step: steps.Flatten) -> None:
    if made.needed[0]:
        made.contribute(step.x, made.gradient[step.y])


def _dropout(made: List, i: int, step: steps.Dropout) -> None:
    if made.mode == "evaluate":
        made.value[step.y] = made.value[step.x]
        return
    made.value[step.y] = made.new(step.y)
    _drop(made, step, made.value[step.x], made.value[step.y])


def _dropout_backward(made: List, i: int, step: steps.Dropout) -> None:
    if made.needed[0]:
        dx = made.over(step.y)
        _drop(made, step, made.gradient[step.y], dx)
        made.replace(step.y, dx)
        made.contribute(step.x, dx)


def _drop(made: List, step: steps.Dropout, x: Buffer, y: Buffer) -> None:
    elements = prod(made.graph.values[step.y])
    made.add("Drop", x=x, y=y, elements=elements, lanes=made.lanes, number=step.number, p=step.p)


_FORWARD: dict[type[Step], Callable[..., None]] = {
    steps.Conv: conv_lists.forward,
    steps.GroupNorm: _group_norm,
    steps.BatchNorm: _batch_norm,
    steps.Relu: _relu,
    steps.Add: _sum,
    steps.MaxPool: _max_pool,
    steps.AveragePool: _average_pool,
    steps.Flatten: _flatten,
    steps.Dropout: _dropout,
}
_BACKWARD: dict[type[Step], Callable[..., None]] = {
    steps.Conv: conv_lists.backward,
    steps.GroupNorm: _norm_backward,
    steps.BatchNorm: _norm_backward,
    steps.Relu: _relu_backward,
    steps.Add: _sum_backward,
    steps.MaxPool: _max_pool_backward,
    steps.AveragePool: _average_pool_backward,
    steps.Flatten: _flatten_backward,
    steps.Dropout: _dropout_backward,
}
