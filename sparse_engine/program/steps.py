"""A captured network: a short list of steps over numbered values.

Value 0 is the input, the last one the logits. A value has a shape (channels, height, width) per sample; a
vector has height and width 1. A step reads values and writes one; what it needs of the model it names by
where that lies: a weight is a segment of the packed values or a place in `rest`, everything else a place in
`rest`. The loss, and the steps backward, follow from the list (sparse_engine/program/cpu/lists.py).
"""

from dataclasses import dataclass
from math import prod

from sparse_engine.model.model import Layout
from sparsefl.kernels.pool import Window
from sparsefl.kernels.sparse_conv import Geometry

Shape = tuple[int, int, int]


@dataclass(frozen=True)
class Weight:
    """A prunable weight (its number in the layout), or one that stays dense (where it begins in `rest`)."""

    name: str
    shape: tuple[int, ...]
    segment: int | None = None
    at: int = 0


@dataclass(frozen=True, kw_only=True)
class Step:
    """`name`: of the module, or of the function where there is none."""

    name: str
    x: int
    y: int

    @property
    def inputs(self) -> tuple[int, ...]:
        return (self.x,)

    @property
    def parameters(self) -> tuple[tuple[int, int], ...]:
        """(first, length) of what it trains in `rest`."""
        return ()

    def describe(self, values: "tuple[Shape, ...]") -> str:
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Conv(Step):
    """A convolution; a linear layer is one of a 1x1 kernel on a 1x1 image.

    groups: outputs of a group see its own inputs alone. The weight, which is not pruned then, is [out, in /
    groups, ...]; `geometry` has all inputs.
    """

    weight: Weight
    geometry: Geometry
    bias: int | None
    relu: bool = False
    groups: int = 1

    @property
    def parameters(self) -> tuple[tuple[int, int], ...]:
        weight = () if self.weight.segment is not None else ((self.weight.at, prod(self.weight.shape)),)
        return weight + (() if self.bias is None else ((self.bias, self.geometry.out_channels),))

    def describe(self, values: tuple[Shape, ...]) -> str:
        g = self.geometry
        size = f"{g.in_channels} > {g.out_channels}"
        if len(self.weight.shape) == 2:
            what = f"linear {size}"
        else:
            what = f"conv {g.kernel[0]}x{g.kernel[1]} {size}"
            what += f" stride {g.stride}" if g.stride > 1 else ""
            what += f" padding {g.padding[0]},{g.padding[1]}" if any(g.padding) else ""
            what += f" dilation {g.dilation[0]},{g.dilation[1]}" if g.dilation != (1, 1) else ""
            what += f" in {self.groups} groups" if self.groups > 1 else ""
        dense = "" if self.weight.segment is not None else " (dense)"
        return what + dense + (" + bias" if self.bias is not None else "") + _relu(self.relu)


@dataclass(frozen=True, kw_only=True)
class GroupNorm(Step):
    groups: int
    gamma: int | None
    beta: int | None
    channels: int
    eps: float
    relu: bool = False

    @property
    def parameters(self) -> tuple[tuple[int, int], ...]:
        return tuple((at, self.channels) for at in (self.gamma, self.beta) if at is not None)

    def describe(self, values: tuple[Shape, ...]) -> str:
        return f"group norm of {self.groups}" + _relu(self.relu)


@dataclass(frozen=True, kw_only=True)
class BatchNorm(Step):
    gamma: int | None
    beta: int | None
    mean: int | None  # running statistics, in rest
    var: int | None
    count: int | None  # batches so far, in integers
    channels: int
    eps: float
    momentum: float | None  # None: the mean over all batches
    relu: bool = False

    @property
    def parameters(self) -> tuple[tuple[int, int], ...]:
        return tuple((at, self.channels) for at in (self.gamma, self.beta) if at is not None)

    def describe(self, values: tuple[Shape, ...]) -> str:
        return "batch norm" + _relu(self.relu)


@dataclass(frozen=True, kw_only=True)
class Relu(Step):
    def describe(self, values: tuple[Shape, ...]) -> str:
        return "relu"


@dataclass(frozen=True, kw_only=True)
class Add(Step):
    other: int
    relu: bool = False

    @property
    def inputs(self) -> tuple[int, ...]:
        return (self.x, self.other)

    def describe(self, values: tuple[Shape, ...]) -> str:
        return "add" + _relu(self.relu)


@dataclass(frozen=True, kw_only=True)
class MaxPool(Step):
    window: Window
    relu: bool = False  # of the maximum: the same as the maximum of relu

    def describe(self, values: tuple[Shape, ...]) -> str:
        return f"max pool {_sizes(self.window)}" + _relu(self.relu)


@dataclass(frozen=True, kw_only=True)
class AveragePool(Step):
    window: Window | None  # None: adaptive

    def describe(self, values: tuple[Shape, ...]) -> str:
        if self.window is None:
            return f"average pool to {values[self.y][1]}x{values[self.y][2]}"
        return f"average pool {_sizes(self.window)}"


@dataclass(frozen=True, kw_only=True)
class Flatten(Step):
    """The same numbers in the same places under another shape."""

    def describe(self, values: tuple[Shape, ...]) -> str:
        return "flatten"


@dataclass(frozen=True, kw_only=True)
class Dropout(Step):
    p: float
    number: int  # of the dropouts of the network, in the order of its modules

    def describe(self, values: tuple[Shape, ...]) -> str:
        return f"dropout {self.p:g}"


@dataclass(frozen=True)
class Graph:
    """A network: the layout of its models, the shape of a sample, all values, all steps."""

    title: str
    layout: Layout
    sample: tuple[int, ...]
    values: tuple[Shape, ...]
    steps: tuple[Step, ...]

    @property
    def num_classes(self) -> int:
        return self.values[self.steps[-1].y][0]

    @property
    def trained(self) -> tuple[tuple[int, int], ...]:
        """(first, length) of all that is trained in `rest`, in order, neighbours joined."""
        joined: list[tuple[int, int]] = []
        for first, length in sorted(part for step in self.steps for part in step.parameters):
            if joined and sum(joined[-1]) == first:
                joined[-1] = (joined[-1][0], joined[-1][1] + length)
            else:
                joined.append((first, length))
        return tuple(joined)

    @property
    def num_dropouts(self) -> int:
        """How many seeds a training needs."""
        return max((step.number + 1 for step in self.steps if isinstance(step, Dropout)), default=0)

    def __str__(self) -> str:
        rows = [
            (
                step.name,
                step.describe(self.values),
                f"{_values(step)} -> v{step.y}",
                _size(self.values[step.y]),
            )
            for step in self.steps
        ]
        widths = [max(len(row[i]) for row in rows) for i in range(3)]
        lines = [
            "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=False)) + "  " + row[3]
            for row in rows
        ]
        return "\n".join([f"{self.title}: v0 {_size(self.values[0])}", *lines])


def _values(step: Step) -> str:
    return " ".join(f"v{x}" for x in step.inputs)


def _size(shape: Shape) -> str:
    return str(shape[0]) if shape[1:] == (1, 1) else "x".join(map(str, shape))


def _sizes(window: Window) -> str:
    text = f"{window.kernel[0]}x{window.kernel[1]}"
    text += f" stride {window.stride[0]},{window.stride[1]}" if window.stride != window.kernel else ""
    return text + (f" padding {window.padding[0]},{window.padding[1]}" if any(window.padding) else "")


def _relu(relu: bool) -> str:
    return ", relu" if relu else ""
