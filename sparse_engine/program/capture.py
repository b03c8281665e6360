"""A network into a Graph, by torch.fx.

The trace is symbolic: control flow that depends on values, or on shapes, cannot slip through. Shapes come
from a run on torch's "meta" device, at two batch sizes, which must agree. What a Graph has no step for is
`NotCaptured`, with the reason in words: such a network runs layer by layer.
"""

import copy
import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from sparse_engine.model.model import Layout
from sparse_engine.nn.layer import HOOKS
from sparse_engine.program import steps
from sparse_engine.program.fuse import fuse
from sparse_engine.program.steps import Graph, Shape, Step
from sparsefl.kernels.pool import Window
from sparsefl.kernels.sparse_conv import Geometry


class NotCaptured(ValueError):
    """Why a network is no program, in words."""


def capture(net: nn.Module, sample: tuple[int, ...], layout: Layout) -> Graph:
    """Return the graph of a dense `net` for samples of that shape; `layout` is that of its models."""
    net = copy.deepcopy(net)
    _check(net)
    traced = _traced(net)
    shapes = _shapes(net, traced, sample)
    builder = _Builder(net, layout, shapes, values=[_input(sample)])
    for node in traced.nodes:
        builder.add(node)
    unused = [name for name, _ in net.named_parameters() if name not in builder.used]
    if unused:
        raise NotCaptured(f"{unused[0]} has no part in forward")
    _check_result(builder.done, builder.result)
    found = fuse(builder.done, builder.result)
    return Graph(type(net).__name__, layout, tuple(sample), tuple(builder.values), tuple(found))


def _check(net: nn.Module) -> None:
    for path, module in net.named_modules():
        where = path or "the network"
        if any(module.__dict__.get(name) for name in HOOKS if name != "_is_full_backward_hook"):
            raise NotCaptured(f"{where} has hooks")
        if nn.utils.parametrize.is_parametrized(module):
            raise NotCaptured(f"{where} computes its parameters")
    for name, p in net.named_parameters():
        if not p.requires_grad:
            raise NotCaptured(f"{name} is frozen")
        if p.dtype != torch.float32:
            raise NotCaptured(f"{name} is {p.dtype}")


def _check_result(done: list[Step], result: int) -> None:
    """A step that nobody reads would train nothing, and what a norm keeps would not move."""
    read = {x for step in done for x in step.inputs} | {result}
    for step in done:
        if step.y not in read:
            raise NotCaptured(f"{step.name} does not lead to the result")
    if not done:
        raise NotCaptured("its result is the batch itself")


def _traced(net: nn.Module) -> fx.Graph:
    """The trace in training; the one in evaluation must be the same, but for functional dropout."""
    found = {}
    for mode in (True, False):
        try:
            found[mode] = fx.Tracer().trace(net.train(mode))
        except Exception as error:  # whatever the user's forward raises when a proxy goes through it
            raise NotCaptured(f"torch.fx cannot trace it: {_first_line(error)}") from error
    if _outline(found[True]) != _outline(found[False]):
        raise NotCaptured("its forward does something else in evaluation")
    return found[True]


def _outline(graph: fx.Graph) -> list[Any]:
    def kept(node: fx.Node) -> dict[str, Any]:
        return {k: v for k, v in node.kwargs.items() if not (node.target is F.dropout and k == "training")}

    return [(n.op, n.target, str(n.args), str(kept(n))) for n in graph.nodes]


def _shapes(net: nn.Module, graph: fx.Graph, sample: tuple[int, ...]) -> dict[fx.Node, Any]:
    """{node: what it gives for a batch of 2}, on the meta device."""
    module = fx.GraphModule(copy.deepcopy(net).to("meta"), graph)
    runs = []
    for batch in (2, 3):
        run = _Recorder(module)
        try:
            run.run(torch.empty((batch, *sample), device="meta"))
        except Exception as error:  # as above
            raise NotCaptured(f"it cannot take samples {sample}: {_first_line(error)}") from error
        runs.append(run.seen)
    two, three = runs
    for node, x in two.items():
        if node.op != "get_attr" and isinstance(x, Tensor) and not _per_sample(x, three[node]):
            raise NotCaptured(f"{node.name} has no batch as its first axis")
    return two


def _per_sample(two: Tensor, three: Tensor) -> bool:
    """Is the first axis of both the batch, of 2 and 3?"""
    return two.shape[:1] == (2,) and three.shape[:1] == (3,) and two.shape[1:] == three.shape[1:]


class _Recorder(fx.Interpreter):
    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.seen: dict[fx.Node, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        self.seen[n] = super().run_node(n)
        return self.seen[n]


@dataclass
class _Builder:
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

    def add(self, node: fx.Node) -> None:
        if node.op == "placeholder":
            if self.number:
                raise NotCaptured("its forward takes more than one argument")
            self.number[node] = 0
        elif node.op == "output":
            self._finish(node)
        elif not isinstance(self.shapes[node], Tensor):
            if any(isinstance(x, Tensor) for x in _flat(self.shapes[node])):
                raise NotCaptured(f"{node.name} gives several tensors")
        elif node.op == "call_module":
            self._module(node, self.net.get_submodule(str(node.target)))
        elif node.op in ("call_function", "call_method"):
            self._function(node)
        else:
            raise NotCaptured(f"its forward reads {node.target} itself")

    def _finish(self, node: fx.Node) -> None:
        (found,) = node.args
        if not isinstance(found, fx.Node) or found not in self.number or self.shapes[found].dim() != 2:
            raise NotCaptured("its result is not one tensor [batch, classes]")
        self.result = self.number[found]

    def _module(self, node: fx.Node, module: nn.Module) -> None:
        make = _MODULES.get(type(module))
        if make is None:
            raise NotCaptured(f"there is no step for {type(module).__name__} ({node.target})")
        if len(node.args) != 1 or node.kwargs:
            raise NotCaptured(f"{node.target} takes more than one argument")
        own = [name for name, _ in module.named_parameters(prefix=str(node.target))]
        for name in own or [str(node.target)] * isinstance(module, nn.Dropout):
            if name in self.used:
                raise NotCaptured(f"{node.target} is called twice")
            self.used.add(name)
        make(self, node, module)

    def _function(self, node: fx.Node) -> None:
        make = _FUNCTIONS.get(node.target)
        name = getattr(node.target, "__name__", str(node.target))
        if make is None:
            raise NotCaptured(f"there is no step for {name}()")
        if not node.args:
            raise NotCaptured(f"{name}() takes its tensor by keyword")
        make(self, node)

    # What the makers below use.

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
        self.values.append(_shape(tuple(self.shapes[node].shape[1:]), node.name))
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


def _conv(b: _Builder, node: fx.Node, m: nn.Conv2d) -> None:
    path, x = str(node.target), b.of(node.args[0], 4)
    if m.groups != 1:
        raise NotCaptured(f"{path} has {m.groups} groups")
    if m.stride[0] != m.stride[1]:
        raise NotCaptured(f"{path} has a stride per axis")
    if isinstance(m.padding, str) or m.padding_mode != "zeros":
        raise NotCaptured(f"{path} pads by {m.padding!r} ({m.padding_mode})")
    kernel, padding, dilation = _pair(m.kernel_size), _pair(m.padding), _pair(m.dilation)
    shape = Geometry(m.out_channels, m.in_channels, kernel, m.stride[0], padding, dilation)
    bias = b.parameter(path, "bias", m.bias)
    weight = b.weight(path, m.weight)
    b.done.append(steps.Conv(name=path, x=x, y=b.new(node), weight=weight, geometry=shape, bias=bias))


def _linear(b: _Builder, node: fx.Node, m: nn.Linear) -> None:
    path, x = str(node.target), b.of(node.args[0], 2)
    shape = Geometry(m.out_features, m.in_features)
    bias = b.parameter(path, "bias", m.bias)
    weight = b.weight(path, m.weight)
    b.done.append(steps.Conv(name=path, x=x, y=b.new(node), weight=weight, geometry=shape, bias=bias))


def _group_norm(b: _Builder, node: fx.Node, m: nn.GroupNorm) -> None:
    path, x = str(node.target), b.of(node.args[0])
    if m.eps <= 0:
        raise NotCaptured(f"{path} has eps {m.eps:g}")
    b.done.append(
        steps.GroupNorm(
            name=path,
            x=x,
            y=b.new(node),
            groups=m.num_groups,
            gamma=b.parameter(path, "weight", m.weight),
            beta=b.parameter(path, "bias", m.bias),
            channels=m.num_channels,
            eps=m.eps,
        )
    )


def _batch_norm(b: _Builder, node: fx.Node, m: nn.BatchNorm2d | nn.BatchNorm1d) -> None:
    path, x = str(node.target), b.of(node.args[0], 4 if isinstance(m, nn.BatchNorm2d) else 2)
    count = f"{path}.num_batches_tracked" if path else "num_batches_tracked"
    b.done.append(
        steps.BatchNorm(
            name=path,
            x=x,
            y=b.new(node),
            gamma=b.parameter(path, "weight", m.weight),
            beta=b.parameter(path, "bias", m.bias),
            mean=b.parameter(path, "running_mean", m.running_mean),
            var=b.parameter(path, "running_var", m.running_var),
            count=b.integers.get(count),
            channels=m.num_features,
            eps=m.eps,
            momentum=m.momentum,
        )
    )


def _relu(b: _Builder, node: fx.Node, m: object = None) -> None:
    x = node.args[0]
    inplace = getattr(m, "inplace", False) or node.kwargs.get("inplace", False) or len(node.args) > 1
    number = b.of(x)
    assert isinstance(x, fx.Node)
    y = b.new_in_place(node, x) if inplace else b.new(node)
    b.done.append(steps.Relu(name=_name(node), x=number, y=y))


def _max_pool(b: _Builder, node: fx.Node, m: nn.MaxPool2d | None = None) -> None:
    given = _arguments(
        node, ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices"), m
    )
    if _pair(given.get("dilation", 1)) != (1, 1) or given.get("ceil_mode") or given.get("return_indices"):
        raise NotCaptured(f"{_name(node)} is a max pool with dilation, ceil_mode or indices")
    x = b.of(node.args[0], 4)
    b.done.append(steps.MaxPool(name=_name(node), x=x, y=b.new(node), window=_window(given)))


def _average_pool(b: _Builder, node: fx.Node, m: nn.AvgPool2d | None = None) -> None:
    names = ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override")
    given = _arguments(node, names, m)
    window = _window(given)
    counted = given.get("count_include_pad", True) or not any(window.padding)
    if given.get("ceil_mode") or given.get("divisor_override") is not None or not counted:
        raise NotCaptured(f"{_name(node)} is an average pool with ceil_mode or another divisor")
    x = b.of(node.args[0], 4)
    b.done.append(steps.AveragePool(name=_name(node), x=x, y=b.new(node), window=window))


def _adaptive_pool(b: _Builder, node: fx.Node, m: nn.AdaptiveAvgPool2d | None = None) -> None:
    x = b.of(node.args[0], 4)
    if b.values[x] == _shape(tuple(b.shapes[node].shape[1:]), node.name):
        b.same(node, x)
    else:
        b.done.append(steps.AveragePool(name=_name(node), x=x, y=b.new(node), window=None))


def _mean(b: _Builder, node: fx.Node) -> None:
    given = _arguments(node, ("dim", "keepdim"), None)
    axes = {d % 4 for d in given["dim"]} if isinstance(given.get("dim"), (tuple, list)) else set()
    if axes != {2, 3}:
        raise NotCaptured(f"{node.name} is a mean over other axes than height and width")
    x = b.of(node.args[0], 4)
    b.done.append(steps.AveragePool(name=node.name, x=x, y=b.new(node), window=None))


def _flatten(b: _Builder, node: fx.Node, m: object = None) -> None:
    given = node.args[0]
    x = b.of(given)
    assert isinstance(given, fx.Node)
    before, after = (tuple(b.shapes[n].shape[1:]) for n in (given, node))
    if before == after:
        b.same(node, x)
        return
    if after != (prod(before),):
        raise NotCaptured(f"{node.name} makes {after} of {before}")
    b.done.append(steps.Flatten(name=_name(node), x=x, y=b.view(node, given)))


def _dropout(b: _Builder, node: fx.Node, m: nn.Dropout | None = None) -> None:
    if m is None or m.inplace:
        raise NotCaptured(f"{_name(node)} is a dropout that is no module, or in place")
    if m.p == 0:
        b.same(node, b.of(node.args[0]))
        return
    if m.p >= 1:
        raise NotCaptured(f"{_name(node)} drops everything")
    number = b.dropouts[str(node.target)]
    b.done.append(steps.Dropout(name=_name(node), x=b.of(node.args[0]), y=b.new(node), p=m.p, number=number))


def _identity(b: _Builder, node: fx.Node, m: object = None) -> None:
    b.same(node, b.of(node.args[0]))


def _add(b: _Builder, node: fx.Node) -> None:
    if len(node.args) != 2 or node.kwargs:
        raise NotCaptured(f"{node.name} is a sum with more than two arguments")
    x, other = (b.of(arg) for arg in node.args)
    if b.values[x] != b.values[other]:
        raise NotCaptured(f"{node.name} adds values of two shapes")
    first = node.args[0]
    assert isinstance(first, fx.Node)
    y = b.new_in_place(node, first) if node.target in (operator.iadd, "add_") else b.new(node)
    b.done.append(steps.Add(name=node.name, x=x, other=other, y=y))


def _log_softmax(b: _Builder, node: fx.Node, m: nn.LogSoftmax | None = None) -> None:
    """At the end it changes nothing: the cross-entropy takes the logarithm of a softmax again."""
    dim = m.dim if m is not None else _arguments(node, ("dim",), None).get("dim")
    if dim not in (1, -1) or any(user.op != "output" for user in node.users):
        raise NotCaptured(f"{_name(node)} is a log-softmax within the network")
    b.same(node, b.of(node.args[0], 2))


def _arguments(node: fx.Node, names: tuple[str, ...], module: nn.Module | None) -> dict[str, Any]:
    if module is not None:
        return {name: getattr(module, name) for name in names if hasattr(module, name)}
    return dict(zip(names, node.args[1:], strict=False)) | dict(node.kwargs)


def _window(given: dict[str, Any]) -> Window:
    return Window.of(given["kernel_size"], given.get("stride") or None, given.get("padding", 0))


def _name(node: fx.Node) -> str:
    return str(node.target) if node.op == "call_module" else node.name


def _input(sample: tuple[int, ...]) -> Shape:
    return _shape(sample, "x") if len(sample) in (1, 3) else (prod(sample), 1, 1)


def _shape(shape: tuple[int, ...], name: str) -> Shape:
    if len(shape) not in (1, 3):
        raise NotCaptured(f"{name} is neither an image nor a vector but {shape}")
    return (*shape, 1, 1)[:3]  # type: ignore[return-value]  # one or three and two


def _pair(x: Any) -> tuple[int, int]:
    return (x, x) if isinstance(x, int) else (int(x[0]), int(x[1]))


def _places(entries: tuple[Any, ...]) -> dict[str, int]:
    """Where each tensor begins."""
    places, at = {}, 0
    for entry in entries:
        places[entry.name] = at
        at += prod(entry.shape)
    return places


def _flat(x: Any) -> list[Any]:
    return [y for part in x for y in _flat(part)] if isinstance(x, (tuple, list)) else [x]


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"


_MODULES: dict[type[nn.Module], Callable[..., None]] = {
    nn.Conv2d: _conv,
    nn.Linear: _linear,
    nn.GroupNorm: _group_norm,
    nn.BatchNorm1d: _batch_norm,
    nn.BatchNorm2d: _batch_norm,
    nn.ReLU: _relu,
    nn.MaxPool2d: _max_pool,
    nn.AvgPool2d: _average_pool,
    nn.AdaptiveAvgPool2d: _adaptive_pool,
    nn.Flatten: _flatten,
    nn.Dropout: _dropout,
    nn.Identity: _identity,
    nn.LogSoftmax: _log_softmax,
}
_FUNCTIONS: dict[Any, Callable[..., None]] = {
    F.relu: _relu,
    torch.relu: _relu,
    "relu": _relu,
    F.max_pool2d: _max_pool,
    F.avg_pool2d: _average_pool,
    F.adaptive_avg_pool2d: _adaptive_pool,
    torch.mean: _mean,
    "mean": _mean,
    torch.flatten: _flatten,
    torch.reshape: _flatten,
    "flatten": _flatten,
    "view": _flatten,
    "reshape": _flatten,
    "contiguous": _identity,
    operator.add: _add,
    operator.iadd: _add,
    torch.add: _add,
    "add": _add,
    "add_": _add,
    F.log_softmax: _log_softmax,
    torch.log_softmax: _log_softmax,
}
