"""A graph while it is built: values and steps so far, and where the tensors of modules lie in a model."""

from dataclasses import dataclass, field
from math import prod
from typing import Any

from torch import Tensor, fx, nn

from sparse_engine.model.model import Layout
from sparse_engine.program import steps
from sparse_engine.program.steps import Shape, Step
from sparse_engine.program.trace import NotCaptured


@dataclass
class Builder:
    """Steps, one node after the other. `number`: the value of a node that is a tensor."""

    net: nn.Module
    layout: Layout
    shapes: dict[fx.Node, Any]
    values: list[Shape]
    done: list[Step] = field(default_factory=list)
    number: dict[fx.Node, int] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    memory: dict[int, int] = field(default_factory=dict)  # {value: the first one that lies where it does}
    result: int = 0

    def __post_init__(self) -> None:
        self.rest = _places(self.layout.floats)
        self.integers = _places(self.layout.integers)
        dropouts = [path for path, m in self.net.named_modules() if isinstance(m, nn.Dropout)]
        self.dropouts = {path: i for i, path in enumerate(dropouts)}

    def of(self, x: Any, dims: int | None = None) -> int:
        """The number of the value that an argument is; with `dims`, of a tensor with so many axes."""
        if not isinstance(x, fx.Node) or x not in self.number:
            raise NotCaptured(f"{x} is not computed from the batch")
        if dims is not None and self.shapes[x].dim() != dims:
            raise NotCaptured(f"{x.name} has {self.shapes[x].dim()} axes where a step takes {dims}")
        return self.number[x]

    def new(self, node: fx.Node) -> int:
        """A new value with the shape of the node's result."""
        self.number[node] = len(self.values)
        self.values.append(value_shape(tuple(self.shapes[node].shape[1:]), node.name))
        return self.number[node]

    def new_in_place(self, node: fx.Node, x: fx.Node) -> int:
        """As `new`, for a node that writes over x: nobody may read afterwards what was there."""
        self.check_last_reader(node, x)
        return self.view(node, x)

    def view(self, node: fx.Node, x: fx.Node) -> int:
        """As `new`, for a node whose result lies where x does."""
        made, old = self.new(node), self.number[x]
        self.memory[made] = self.memory.get(old, old)
        return made

    def check_last_reader(self, node: fx.Node, x: fx.Node) -> None:
        def place(n: fx.Node) -> int:
            return self.memory.get(self.number[n], self.number[n])

        nodes = [*node.graph.nodes]
        later = {*nodes[nodes.index(node) + 1 :]}
        for other in self.number:
            if place(other) == place(x) and not later.isdisjoint(other.users):
                raise NotCaptured(f"{node.name} writes over {x.name}, which is read again")

    def same(self, node: fx.Node, x: int) -> None:
        """The node changes nothing."""
        self.number[node] = x

    def parameter(self, path: str, name: str, tensor: Tensor | None) -> int | None:
        """Where a tensor of a module begins in `rest`; None where the module has none."""
        return None if tensor is None else self.rest[f"{path}.{name}" if path else name]

    def weight(self, path: str, tensor: Tensor) -> steps.Weight:
        name = f"{path}.weight" if path else "weight"
        if name in self.layout.names:
            return steps.Weight(name, tuple(tensor.shape), self.layout.index(name))
        return steps.Weight(name, tuple(tensor.shape), None, self.rest[name])


def input_shape(sample: tuple[int, ...]) -> Shape:
    """The shape of value 0."""
    return value_shape(sample, "x") if len(sample) in (1, 3) else (prod(sample), 1, 1)


def value_shape(shape: tuple[int, ...], name: str) -> Shape:
    """Of an image or a vector, without its batch."""
    if len(shape) not in (1, 3):
        raise NotCaptured(f"{name} is neither an image nor a vector but {shape}")
    return (*shape, 1, 1)[:3]  # type: ignore[return-value]  # one or three and two


def _places(entries: tuple[Any, ...]) -> dict[str, int]:
    """Where each tensor begins."""
    places, at = {}, 0
    for entry in entries:
        places[entry.name] = at
        at += prod(entry.shape)
    return places
