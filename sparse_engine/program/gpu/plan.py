"""What a GPU runs of a graph: layers with their bias, ReLU and max pool, norms, sums and average pools, in
order, and which gradients go where.

What a graph has that there is no GPU version of is `NotOnGpu`, with the reason in a sentence.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

from sparse_engine.program import steps
from sparse_engine.program.steps import Graph, Shape
from sparsefl.kernels.errors import NoKernel
from sparsefl.kernels.group import Layer, Network
from sparsefl.kernels.group_norm import Norm


class NotOnGpu(NoKernel):
    """There is no GPU version of something that was asked for; the CPU has one."""


@dataclass(frozen=True, kw_only=True)
class Op:
    """Reads value x, writes value y."""

    x: int
    y: int


@dataclass(frozen=True, kw_only=True)
class LayerOp(Op):
    number: int  # of the network's layers


@dataclass(frozen=True, kw_only=True)
class NormOp(Op):
    norm: Norm
    count: int | None = None  # of batches, in integers


@dataclass(frozen=True, kw_only=True)
class AddOp(Op):
    other: int | None  # None: ReLU alone
    relu: bool


@dataclass(frozen=True, kw_only=True)
class MeanOp(Op):
    window: tuple[int, int]


class Plan(NamedTuple):
    """network   its layers: those whose weights are pruned in their order, then those that stay dense
    dense     (first, length) of the latter in `rest`: on the card they are segments that store everything
    values    shapes of all that has memory; flattening gives a value no other
    logits    the last value
    needed    values whose gradient somebody needs
    direct    those of them that a layer makes for one other layer: its pass backward writes the gradient of
              what that layer made before its pool and ReLU, and none of the value itself
    trained   (first, length) of what is trained in `rest`
    """

    network: Network
    dense: tuple[tuple[int, int], ...]
    ops: tuple[Op, ...]
    values: Mapping[int, Shape]
    logits: int
    needed: frozenset[int]
    direct: frozenset[int]
    trained: tuple[tuple[int, int], ...]

    def layer(self, op: LayerOp) -> Layer:
        return self.network.layers[op.number]

    def maker(self, value: int) -> LayerOp:
        """The layer that makes a value which is `direct`."""
        return next(op for op in self.ops if isinstance(op, LayerOp) and op.y == value)

    def own_dz(self, op: LayerOp) -> bool:
        """Has the gradient of the layer's z memory of its own? Else it is that of y."""
        return op.y in self.direct or self.layer(op).gated

    @property
    def numbers(self) -> int:
        """Floats per client and lane: values, and gradients."""
        kept = sum(prod(shape) for shape in self.values.values())
        kept += sum(prod(self.values[v]) for v in self.needed - self.direct)
        layers = [op for op in self.ops if isinstance(op, LayerOp) and self.own_dz(op)]
        return kept + sum(prod(self.layer(op).z_shape) for op in layers)


def plan(graph: Graph) -> Plan:
    """Return what runs of `graph`."""
    same = _flattened(graph)
    readers = Counter(
        same[v] for step in graph.steps if not isinstance(step, steps.Flatten) for v in step.inputs
    )
    last = same[graph.steps[-1].y]
    readers[last] += 1
    ops: list[Op] = []
    layers: dict[int, Layer] = {}
    dense: list[tuple[int, int]] = []
    for step in graph.steps:
        x, y = same[step.x], same[step.y]
        if isinstance(step, steps.Conv):
            number = step.weight.segment
            if number is None:
                number = len(graph.layout.names) + len(dense)
                dense.append((step.weight.at, prod(step.weight.shape)))
            layers[number] = _layer(step, graph)
            ops.append(LayerOp(x=x, y=y, number=number))
        elif isinstance(step, steps.MaxPool):
            at = _pooled(step, x, ops, layers, readers)
            ops[at] = replace(ops[at], y=y)
        elif isinstance(step, (steps.GroupNorm, steps.BatchNorm)):
            ops.append(_norm(step, x, y))
        elif isinstance(step, steps.Add):
            ops.append(AddOp(x=x, y=y, other=same[step.other], relu=step.relu))
        elif isinstance(step, steps.Relu):
            ops.append(AddOp(x=x, y=y, other=None, relu=True))
        elif isinstance(step, steps.AveragePool):
            ops.append(MeanOp(x=x, y=y, window=_window(step, graph)))
        elif not isinstance(step, steps.Flatten):
            raise NotOnGpu(f"{step.name}: there is no GPU version of {step.describe(graph.values)} yet")
    return _made(graph, ops, layers, dense, last, readers)


def _made(
    graph: Graph,
    ops: list[Op],
    layers: dict[int, Layer],
    dense: list[tuple[int, int]],
    last: int,
    readers: Counter[int],
) -> Plan:
    layout = graph.layout
    if graph.values[last][1:] != (1, 1):
        raise NotOnGpu("there is no GPU version of a network whose result is no vector")
    if sorted(layers) != list(range(len(layout.names) + len(dense))):
        raise NotOnGpu("there is no GPU version of weights besides those of conv2d and linear")
    network = Network(tuple(layers[number] for number in sorted(layers)), layout.num_floats)
    values = {0: graph.values[0]} | {op.y: graph.values[op.y] for op in ops}
    needed = set[int]()
    for op in ops:
        norm = op.norm if isinstance(op, NormOp) else None
        learns = isinstance(op, LayerOp) or (norm is not None and (norm.gamma, norm.beta) != (None, None))
        if learns or {op.x, getattr(op, "other", None)} & needed:
            needed.add(op.y)
    made = {op.y for op in ops if isinstance(op, LayerOp)}
    read = {op.x for op in ops if isinstance(op, LayerOp)}
    direct = {v for v in made & read & needed if readers[v] == 1}
    trained = _without(graph.trained, dense)
    ends = values, last, frozenset(needed), frozenset(direct), trained
    return Plan(network, tuple(dense), tuple(ops), *ends)


def _flattened(graph: Graph) -> dict[int, int]:
    """Of every value, the one whose memory it is."""
    same = {0: 0}
    for step in graph.steps:
        same[step.y] = same[step.x] if isinstance(step, steps.Flatten) else step.y
    return same


def _layer(step: steps.Conv, graph: Graph) -> Layer:
    if step.groups != 1:
        raise NotOnGpu(f"{step.name}: there is no GPU version of convolutions in groups")
    size = graph.values[step.x][1:]
    return Layer(replace(step.geometry, density=1.0), size, step.bias, step.relu)


def _without(
    parts: Sequence[tuple[int, int]], taken: Sequence[tuple[int, int]]
) -> tuple[tuple[int, int], ...]:
    """(first, length) of what is in `parts` and not in `taken`."""
    left = [(first, first + length) for first, length in parts]
    for first, length in taken:
        cut = [((lo, min(hi, first)), (max(lo, first + length), hi)) for lo, hi in left]
        left = [(lo, hi) for pair in cut for lo, hi in pair if lo < hi]
    return tuple((lo, hi - lo) for lo, hi in left)


def _pooled(
    step: steps.MaxPool, x: int, ops: list[Op], layers: dict[int, Layer], readers: Counter[int]
) -> int:
    """Gives the layer that made x its pool; which of `ops` it is."""
    window = step.window
    if window.kernel != window.stride or any(window.padding):
        raise NotOnGpu(f"{step.name}: there is no GPU version of pool windows that overlap or are padded")
    found = [i for i, op in enumerate(ops) if isinstance(op, LayerOp) and op.y == x]
    number = ops[found[0]].number if found else 0  # type: ignore[attr-defined]  # found: of a LayerOp
    if not found or readers[x] != 1 or layers[number].pool != (1, 1):
        raise NotOnGpu(f"{step.name}: there is no GPU version of a pool that does not follow a convolution")
    layer = layers[number]
    try:
        layers[number] = replace(layer, pool=window.kernel, relu=layer.relu or step.relu)
    except ValueError as wrong:
        raise NotOnGpu(f"{step.name}: there is no GPU version of this pool ({wrong})") from None
    return found[0]


def _norm(step: steps.GroupNorm | steps.BatchNorm, x: int, y: int) -> NormOp:
    shared = Norm(channels=step.channels, eps=step.eps, gamma=step.gamma, beta=step.beta, relu=step.relu)
    if isinstance(step, steps.GroupNorm):
        return NormOp(x=x, y=y, norm=replace(shared, per_group=step.channels // step.groups))
    if step.momentum is None and step.mean is not None:
        raise NotOnGpu(
            f"{step.name}: there is no GPU version of a batch norm that keeps a mean over all batches"
        )
    norm = replace(shared, mean=step.mean, var=step.var, momentum=step.momentum or 0.0)
    return NormOp(x=x, y=y, norm=norm, count=step.count)


def _window(step: steps.AveragePool, graph: Graph) -> tuple[int, int]:
    before, after = graph.values[step.x][1:], graph.values[step.y][1:]
    if step.window is None:
        if any(a % b for a, b in zip(before, after, strict=True)):
            raise NotOnGpu(f"{step.name}: there is no GPU version of an average pool of {before} to {after}")
        return before[0] // after[0], before[1] // after[1]
    if step.window.kernel != step.window.stride or any(step.window.padding):
        raise NotOnGpu(f"{step.name}: there is no GPU version of pool windows that overlap or are padded")
    return step.window.kernel
