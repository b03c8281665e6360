"""The lists of native steps of a graph: training (forward, loss, backward), evaluation, growth.

A value is a buffer [channels][height][width][lanes]; flatten is no step. Backward goes through the steps from
the last to the first. The gradient of a value has one buffer: what the first reader of the value brings is
written there, what others bring is added. A sum gives the same buffer to both its inputs; it is written over
only when nobody else still needs it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch

from sparse_engine.program import steps
from sparse_engine.program.cpu.convs import ConvPlan
from sparse_engine.program.cpu.memory import Buffer, Planned
from sparse_engine.program.steps import Graph, Step
from sparsefl.kernels.native import extension

_NONE = -1
_ADAPTIVE = (0, 0), (1, 1), (0, 0)  # kernel, stride, padding


@dataclass
class Lists:
    """Makes one list. `mode`: "train", "evaluate" or "grow"."""

    graph: Graph
    convs: dict[int, ConvPlan]  # by the number of the step
    lanes: int
    mode: str
    planned: list[Planned] = field(default_factory=list)
    value: dict[int, Buffer] = field(default_factory=dict)
    gradient: dict[int, Buffer] = field(default_factory=dict)
    holders: dict[Buffer, set[int]] = field(default_factory=dict)
    saved: dict[int, dict[str, Any]] = field(default_factory=dict)  # what a step keeps for backward

    def make(self) -> list[Planned]:
        self.value[0] = Buffer(self._size(0), "input", pinned=True)
        trained = self._trained_values()
        for i, step in enumerate(self.graph.steps):
            _FORWARD[type(step)](self, i, step)
        last = self.graph.steps[-1].y
        if self.mode == "evaluate":
            self._evaluate(last)
            return self.planned
        self._loss(last)
        for i, step in reversed([*enumerate(self.graph.steps)]):
            if step.y in self.gradient:
                self._backward(i, step, trained)
        return self.planned

    # Values.

    def _size(self, v: int) -> int:
        return prod(self.graph.values[v]) * self.lanes

    def _add(self, kind: str, **fields: Any) -> None:
        self.planned.append(Planned(kind, fields))

    def _new(self, v: int, what: str = "value") -> Buffer:
        return Buffer(self._size(v), f"{what} {v}")

    def _trained_values(self) -> set[int]:
        """Values that depend on what is trained: theirs are the gradients that somebody needs."""
        found: set[int] = set()
        for step in self.graph.steps:
            if isinstance(step, steps.Conv) or step.parameters or found & {*step.inputs}:
                found.add(step.y)
        return found

    def _evaluate(self, last: int) -> None:
        classes = self.graph.values[last][0]
        scratch = Buffer(classes * self.lanes, "logits of the samples")
        self._add("Correct", logits=self.value[last], classes=classes, lanes=self.lanes, scratch=scratch)

    def _loss(self, last: int) -> None:
        classes = self.graph.values[last][0]
        scratch = Buffer((1 + 2 * classes) * self.lanes, "loss")
        self.gradient[last] = self._new(last, "gradient")
        self.holders[self.gradient[last]] = {last}
        logits = {"logits": self.value[last], "dlogits": self.gradient[last]}
        self._add("Loss", **logits, classes=classes, lanes=self.lanes, scratch=scratch)

    # Gradients.

    def _backward(self, i: int, step: Step, trained: set[int]) -> None:
        self.needed = [x in trained for x in step.inputs]
        _BACKWARD[type(step)](self, i, step)
        self.holders[self.gradient[step.y]].discard(step.y)

    def _alone(self, v: int) -> bool:
        """May the gradient of v be written over?"""
        return self.holders[self.gradient[v]] == {v}

    def _over(self, v: int) -> Buffer:
        """Where a step of the same size writes: over the gradient of v, or beside it if others need that."""
        return self.gradient[v] if self._alone(v) else self._new(v, "gradient")

    def _replace(self, v: int, buffer: Buffer) -> None:
        if buffer is not self.gradient[v]:
            self.holders[self.gradient[v]].discard(v)
            self.gradient[v] = buffer
            self.holders.setdefault(buffer, set()).add(v)

    def _contribute(self, v: int, buffer: Buffer) -> None:
        """`buffer` is, or is a part of, the gradient of v."""
        if v not in self.gradient:
            self.gradient[v] = buffer
            self.holders.setdefault(buffer, set()).add(v)
            return
        to = self.gradient[v] if self._alone(v) else self._new(v, "gradient")
        self._add("Add", a=self.gradient[v], b=buffer, y=to, size=self._size(v))
        self._replace(v, to)

    def _masked(self, step: Step) -> Buffer:
        """The gradient of y where y > 0, for a step with relu."""
        to = self._over(step.y)
        self._add(
            "ReluBackward", dy=self.gradient[step.y], y=self.value[step.y], dx=to, size=self._size(step.y)
        )
        self._replace(step.y, to)
        return to


# Convolutions.


def _conv(lists: Lists, i: int, step: steps.Conv) -> None:
    plan, kernel = lists.convs[i], lists.convs[i].kernels.forward
    x, y = lists.value[step.x], lists._new(step.y)
    lists.value[step.y] = y
    bias = _NONE if step.bias is None else step.bias
    if kernel == "winograd":
        scratch = Buffer(plan.weights, "weight")
        how = {"images": plan.images("forward"), "filter": plan.filter("forward")}
        lists._add("Winograd", conv=plan, **how, x=x, y=y, scratch=scratch, bias=bias)
    else:
        planes = _planes(lists, plan, x)
        direction = plan.direction("forward", kernel)
        scratch = Buffer(_ordered(plan, "forward", kernel), "ordered weights")
        fields = {"planes": planes, "y": y, "scratch": scratch, "bias": bias}
        lists._add("ConvApply", conv=plan, direction=direction, **fields)
    if step.relu:
        lists._add("Relu", x=y, other=_NONE, y=y, size=lists._size(step.y))


def _planes(lists: Lists, plan: ConvPlan, x: Buffer) -> Buffer:
    """The input of a convolution in planes. Backward makes them again: kept from the forward pass, they would
    be a third of a training's memory."""
    if plan.forward.planes.is_input:
        return x
    planes = Buffer(plan.forward.planes.size, f"planes of {plan.step.name}")
    lists._add("ToPlanes", planes=plan.forward.planes.native, x=x, to=planes)
    return planes


def _ordered(plan: ConvPlan, way: str, kernel: str) -> int:
    """Floats of the weights in the order of a direction."""
    rows = plan.step.geometry.out_channels if way == "forward" else plan.step.geometry.in_channels
    if kernel == "dense":
        return -(-rows // 3) * 3 * (plan.weights // rows)
    return plan.weights if way == "backward" else 0


def _conv_backward(lists: Lists, i: int, step: steps.Conv) -> None:
    plan = lists.convs[i]
    dy = lists._masked(step) if step.relu else lists.gradient[step.y]
    if lists.mode == "train" and step.bias is not None:
        channels = step.geometry.out_channels
        lists._add(
            "BiasGradient", dy=dy, channels=channels, size=lists._size(step.y) // channels, bias=step.bias
        )
    if lists.mode == "train" or step.weight.segment is not None:
        _weight_gradient(lists, step, plan, dy)
    if lists.needed[0]:
        dx = lists._new(step.x, "gradient")
        _input_gradient(lists, plan, dy, dx)
        lists._contribute(step.x, dx)


def _weight_gradient(lists: Lists, step: steps.Conv, plan: ConvPlan, dy: Buffer) -> None:
    grow = lists.mode == "grow"
    kernel = plan.kernels.growth if grow else plan.kernels.weight_gradient
    x, direction = lists.value[step.x], _NONE
    if kernel != "winograd":
        x = _planes(lists, plan, x)
        direction = plan.direction("forward", "sparse" if kernel == "sparse" else "offsets")
    words = -(-plan.weights // 64)
    size = {"sparse": 0}.get(kernel, -(-plan.weights // 16) * 16 + (4 * words if grow else 0))
    lists._add(
        "WeightGradient",
        conv=plan,
        kernel=plan.kernel_number(kernel),
        direction=direction,
        images=plan.images("forward"),
        tiles=plan.tiles,
        x=x,
        dy=dy,
        scratch=Buffer(size, f"gradient of {step.weight.name}"),
        grow=grow,
    )


def _input_gradient(lists: Lists, plan: ConvPlan, dy: Buffer, dx: Buffer) -> None:
    kernel = plan.kernels.input_gradient
    if plan.scatters:
        direction = plan.direction("forward", "sparse")
        lists._add("LinearInputGradient", conv=plan, direction=direction, dy=dy, dx=dx)
    elif kernel == "winograd":
        scratch = Buffer(plan.weights, "weight")
        how = {"images": plan.images("backward"), "filter": plan.filter("backward")}
        lists._add("Winograd", conv=plan, **how, x=dy, y=dx, scratch=scratch, bias=_NONE)
    else:
        planes = dy
        if not plan.backward.planes.is_input:
            planes = Buffer(plan.backward.planes.size, "planes of a gradient")
            lists._add("ToPlanes", planes=plan.backward.planes.native, x=dy, to=planes)
        direction = plan.direction("backward", kernel)
        scratch = Buffer(_ordered(plan, "backward", kernel), "ordered weights")
        fields = {"planes": planes, "y": dx, "scratch": scratch, "bias": _NONE}
        lists._add("ConvApply", conv=plan, direction=direction, **fields)


# Norms.


def _norm_shape(lists: Lists, step: Step, groups: int) -> Any:
    channels, height, width = lists.graph.values[step.x]
    return extension().NormShape(channels=channels, groups=groups, size=height * width, batch=lists.lanes)


def _group_norm(lists: Lists, i: int, step: steps.GroupNorm) -> None:
    lists.value[step.y] = lists._new(step.y)
    statistics = {name: Buffer(step.groups * lists.lanes, name) for name in ("mean", "rstd")}
    lists.saved[i] = {
        "shape": _norm_shape(lists, step, step.groups),
        **statistics,
        "gamma": _at(step.gamma),
        "beta": _at(step.beta),
        "relu": step.relu,
    }
    values = {"x": lists.value[step.x], "y": lists.value[step.y]}
    lists._add("GroupNorm", **lists.saved[i], **values, eps=step.eps)


def _batch_norm(lists: Lists, i: int, step: steps.BatchNorm) -> None:
    lists.value[step.y] = lists._new(step.y)
    statistics = {name: Buffer(step.channels, name) for name in ("mean", "rstd")}
    lists.saved[i] = {
        "shape": _norm_shape(lists, step, 1),
        **statistics,
        "gamma": _at(step.gamma),
        "beta": _at(step.beta),
        "relu": step.relu,
    }
    lists._add(
        "BatchNorm",
        **lists.saved[i],
        x=lists.value[step.x],
        y=lists.value[step.y],
        scratch=Buffer(2 * lists._size(step.x), "samples of a batch norm"),
        running_mean=_at(step.mean),
        running_var=_at(step.var),
        count=_at(step.count),
        eps=step.eps,
        momentum=-1.0 if step.momentum is None else step.momentum,
    )


def _norm_backward(lists: Lists, i: int, step: steps.GroupNorm | steps.BatchNorm) -> None:
    """Also where nobody needs dx: the gradients of gamma and beta come with it."""
    dx = lists._over(step.y)
    fields = lists.saved[i] | {"dy": lists.gradient[step.y], "x": lists.value[step.x], "dx": dx}
    if isinstance(step, steps.BatchNorm):
        fields["scratch"] = Buffer(3 * lists._size(step.x), "samples of a batch norm")
    lists._add(f"{type(step).__name__}Backward", **fields)
    lists._replace(step.y, dx)
    if lists.needed[0]:
        lists._contribute(step.x, dx)


def _at(place: int | None) -> int:
    return _NONE if place is None else place


# What is between.


def _relu(lists: Lists, i: int, step: steps.Relu) -> None:
    lists.value[step.y] = lists._new(step.y)
    lists._add("Relu", x=lists.value[step.x], other=_NONE, y=lists.value[step.y], size=lists._size(step.y))


def _relu_backward(lists: Lists, i: int, step: steps.Relu) -> None:
    lists._contribute(step.x, lists._masked(step))


def _sum(lists: Lists, i: int, step: steps.Add) -> None:
    lists.value[step.y] = lists._new(step.y)
    a, b, y, size = lists.value[step.x], lists.value[step.other], lists.value[step.y], lists._size(step.y)
    if step.relu:
        lists._add("Relu", x=a, other=b, y=y, size=size)
    else:
        lists._add("Add", a=a, b=b, y=y, size=size)


def _sum_backward(lists: Lists, i: int, step: steps.Add) -> None:
    dy = lists._masked(step) if step.relu else lists.gradient[step.y]
    for x, needed in zip(step.inputs, lists.needed, strict=True):
        if needed:
            lists._contribute(x, dy)


def _pool_shape(lists: Lists, step: steps.MaxPool | steps.AveragePool) -> Any:
    (channels, *size), (_, *out) = lists.graph.values[step.x], lists.graph.values[step.y]
    window = step.window
    kernel, stride, padding = (window.kernel, window.stride, window.padding) if window else _ADAPTIVE

    def axis(i: int) -> Any:
        sizes = {"in": size[i], "out": out[i], "kernel": kernel[i]}
        return extension().PoolAxis(**sizes, stride=stride[i], padding=padding[i])

    height, width = axis(0), axis(1)
    return extension().PoolShape(channels=channels, batch=lists.lanes, height=height, width=width)


def _max_pool(lists: Lists, i: int, step: steps.MaxPool) -> None:
    lists.value[step.y] = lists._new(step.y)
    wide = step.window.index_dtype != torch.uint8
    index = Buffer(lists._size(step.y) // (1 if wide else 4) + 1, "places of maxima")
    lists.saved[i] = {"shape": _pool_shape(lists, step), "index": index, "wide": wide}
    values = {"x": lists.value[step.x], "y": lists.value[step.y]}
    lists._add("MaxPool", **lists.saved[i], **values, relu=step.relu)


def _max_pool_backward(lists: Lists, i: int, step: steps.MaxPool) -> None:
    dy = lists._masked(step) if step.relu else lists.gradient[step.y]
    if lists.needed[0]:
        dx = lists._new(step.x, "gradient")
        lists._add("MaxPoolBackward", **lists.saved[i], dy=dy, dx=dx)
        lists._contribute(step.x, dx)


def _average_pool(lists: Lists, i: int, step: steps.AveragePool) -> None:
    lists.value[step.y] = lists._new(step.y)
    shape = _pool_shape(lists, step)
    lists._add("AveragePool", shape=shape, x=lists.value[step.x], y=lists.value[step.y], backward=False)


def _average_pool_backward(lists: Lists, i: int, step: steps.AveragePool) -> None:
    if lists.needed[0]:
        dx = lists._new(step.x, "gradient")
        shape = _pool_shape(lists, step)
        lists._add("AveragePool", shape=shape, x=lists.gradient[step.y], y=dx, backward=True)
        lists._contribute(step.x, dx)


def _flatten(lists: Lists, i: int, step: steps.Flatten) -> None:
    lists.value[step.y] = lists.value[step.x]


def _flatten_backward(lists: Lists, i: int, step: steps.Flatten) -> None:
    if lists.needed[0]:
        lists._contribute(step.x, lists.gradient[step.y])


def _dropout(lists: Lists, i: int, step: steps.Dropout) -> None:
    if lists.mode == "evaluate":
        lists.value[step.y] = lists.value[step.x]
        return
    lists.value[step.y] = lists._new(step.y)
    _drop(lists, step, lists.value[step.x], lists.value[step.y])


def _dropout_backward(lists: Lists, i: int, step: steps.Dropout) -> None:
    if lists.needed[0]:
        dx = lists._over(step.y)
        _drop(lists, step, lists.gradient[step.y], dx)
        lists._replace(step.y, dx)
        lists._contribute(step.x, dx)


def _drop(lists: Lists, step: steps.Dropout, x: Buffer, y: Buffer) -> None:
    elements = prod(lists.graph.values[step.y])
    lists._add("Drop", x=x, y=y, elements=elements, lanes=lists.lanes, number=step.number, p=step.p)


_FORWARD: dict[type[Step], Callable[..., None]] = {
    steps.Conv: _conv,
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
    steps.Conv: _conv_backward,
    steps.GroupNorm: _norm_backward,
    steps.BatchNorm: _norm_backward,
    steps.Relu: _relu_backward,
    steps.Add: _sum_backward,
    steps.MaxPool: _max_pool_backward,
    steps.AveragePool: _average_pool_backward,
    steps.Flatten: _flatten_backward,
    steps.Dropout: _dropout_backward,
}
