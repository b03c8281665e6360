"""What each node of a trace becomes: a step, the value that it was given, or the reason why it cannot be."""

import operator
from collections.abc import Callable
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from sparse_engine.program import steps
from sparse_engine.program.builder import Builder, value_shape
from sparse_engine.program.trace import NotCaptured
from sparsefl.kernels.pool import Window
from sparsefl.kernels.sparse_conv import Geometry


def add(b: Builder, node: fx.Node) -> None:
    """Adds what the node does to the graph; NotCaptured where there is no step for it."""
    if node.op == "placeholder":
        if b.number:
            raise NotCaptured("its forward takes more than one argument")
        b.number[node] = 0
    elif node.op == "output":
        _finish(b, node)
    elif not isinstance(b.shapes[node], Tensor):
        if any(isinstance(x, Tensor) for x in _flat(b.shapes[node])):
            raise NotCaptured(f"{node.name} gives several tensors")
    elif node.op == "call_module":
        _module(b, node, b.net.get_submodule(str(node.target)))
    elif node.op in ("call_function", "call_method"):
        _function(b, node)
    else:
        raise NotCaptured(f"its forward reads {node.target} itself")


def _finish(b: Builder, node: fx.Node) -> None:
    (found,) = node.args
    if not isinstance(found, fx.Node) or found not in b.number or b.shapes[found].dim() != 2:
        raise NotCaptured("its result is not one tensor [batch, classes]")
    b.result = b.number[found]


def _module(b: Builder, node: fx.Node, module: nn.Module) -> None:
    make = _MODULES.get(type(module))
    if make is None:
        raise NotCaptured(f"there is no step for {type(module).__name__} ({node.target})")
    if len(node.args) != 1 or node.kwargs:
        raise NotCaptured(f"{node.target} takes more than one argument")
    own = [name for name, _ in module.named_parameters(prefix=str(node.target))]
    for name in own or [str(node.target)] * isinstance(module, nn.Dropout):
        if name in b.used:
            raise NotCaptured(f"{node.target} is called twice")
        b.used.add(name)
    make(b, node, module)


def _function(b: Builder, node: fx.Node) -> None:
    make = _FUNCTIONS.get(node.target)
    name = getattr(node.target, "__name__", str(node.target))
    if make is None:
        raise NotCaptured(f"there is no step for {name}()")
    if not node.args:
        raise NotCaptured(f"{name}() takes its tensor by keyword")
    make(b, node)


def _conv(b: Builder, node: fx.Node, m: nn.Conv2d) -> None:
    path, x = str(node.target), b.of(node.args[0], 4)
    if m.stride[0] != m.stride[1]:
        raise NotCaptured(f"{path} has a stride per axis")
    if isinstance(m.padding, str) or m.padding_mode != "zeros":
        raise NotCaptured(f"{path} pads by {m.padding!r} ({m.padding_mode})")
    kernel, padding, dilation = _pair(m.kernel_size), _pair(m.padding), _pair(m.dilation)
    shape = Geometry(m.out_channels, m.in_channels, kernel, m.stride[0], padding, dilation)
    bias = b.parameter(path, "bias", m.bias)
    weight = b.weight(path, m.weight)
    if m.groups > 1 and weight.segment is not None:
        raise NotCaptured(f"{path} has {m.groups} groups, and a weight that is pruned")
    b.done.append(
        steps.Conv(name=path, x=x, y=b.new(node), weight=weight, geometry=shape, groups=m.groups, bias=bias)
    )


def _linear(b: Builder, node: fx.Node, m: nn.Linear) -> None:
    path, x = str(node.target), b.of(node.args[0], 2)
    shape = Geometry(m.out_features, m.in_features)
    bias = b.parameter(path, "bias", m.bias)
    weight = b.weight(path, m.weight)
    b.done.append(steps.Conv(name=path, x=x, y=b.new(node), weight=weight, geometry=shape, bias=bias))


def _group_norm(b: Builder, node: fx.Node, m: nn.GroupNorm) -> None:
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


def _batch_norm(b: Builder, node: fx.Node, m: nn.BatchNorm2d | nn.BatchNorm1d) -> None:
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


def _relu(b: Builder, node: fx.Node, m: object = None) -> None:
    x = node.args[0]
    inplace = getattr(m, "inplace", False) or node.kwargs.get("inplace", False) or len(node.args) > 1
    number = b.of(x)
    assert isinstance(x, fx.Node)
    y = b.new_in_place(node, x) if inplace else b.new(node)
    b.done.append(steps.Relu(name=_name(node), x=number, y=y))


def _max_pool(b: Builder, node: fx.Node, m: nn.MaxPool2d | None = None) -> None:
    given = _arguments(
        node, ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices"), m
    )
    if _pair(given.get("dilation", 1)) != (1, 1) or given.get("ceil_mode") or given.get("return_indices"):
        raise NotCaptured(f"{_name(node)} is a max pool with dilation, ceil_mode or indices")
    x = b.of(node.args[0], 4)
    b.done.append(steps.MaxPool(name=_name(node), x=x, y=b.new(node), window=_window(given)))


def _average_pool(b: Builder, node: fx.Node, m: nn.AvgPool2d | None = None) -> None:
    names = ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override")
    given = _arguments(node, names, m)
    window = _window(given)
    counted = given.get("count_include_pad", True) or not any(window.padding)
    if given.get("ceil_mode") or given.get("divisor_override") is not None or not counted:
        raise NotCaptured(f"{_name(node)} is an average pool with ceil_mode or another divisor")
    x = b.of(node.args[0], 4)
    b.done.append(steps.AveragePool(name=_name(node), x=x, y=b.new(node), window=window))


def _adaptive_pool(b: Builder, node: fx.Node, m: nn.AdaptiveAvgPool2d | None = None) -> None:
    x = b.of(node.args[0], 4)
    if b.values[x] == value_shape(tuple(b.shapes[node].shape[1:]), node.name):
        b.same(node, x)
    else:
        b.done.append(steps.AveragePool(name=_name(node), x=x, y=b.new(node), window=None))


def _mean(b: Builder, node: fx.Node) -> None:
    given = _arguments(node, ("dim", "keepdim"), None)
    axes = {d % 4 for d in given["dim"]} if isinstance(given.get("dim"), (tuple, list)) else set()
    if axes != {2, 3}:
        raise NotCaptured(f"{node.name} is a mean over other axes than height and width")
    x = b.of(node.args[0], 4)
    b.done.append(steps.AveragePool(name=node.name, x=x, y=b.new(node), window=None))


def _flatten(b: Builder, node: fx.Node, m: object = None) -> None:
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


def _dropout(b: Builder, node: fx.Node, m: nn.Dropout | None = None) -> None:
    if m is None or m.inplace:
        raise NotCaptured(f"{_name(node)} is a dropout that is no module, or in place")
    if m.p == 0:
        b.same(node, b.of(node.args[0]))
        return
    if m.p >= 1:
        raise NotCaptured(f"{_name(node)} drops everything")
    number = b.dropouts[str(node.target)]
    b.done.append(steps.Dropout(name=_name(node), x=b.of(node.args[0]), y=b.new(node), p=m.p, number=number))


def _identity(b: Builder, node: fx.Node, m: object = None) -> None:
    b.same(node, b.of(node.args[0]))


def _add(b: Builder, node: fx.Node) -> None:
    if len(node.args) != 2 or node.kwargs:
        raise NotCaptured(f"{node.name} is a sum with more than two arguments")
    x, other = (b.of(arg) for arg in node.args)
    if b.values[x] != b.values[other]:
        raise NotCaptured(f"{node.name} adds values of two shapes")
    first = node.args[0]
    assert isinstance(first, fx.Node)
    y = b.new_in_place(node, first) if node.target in (operator.iadd, "add_") else b.new(node)
    b.done.append(steps.Add(name=node.name, x=x, other=other, y=y))


def _log_softmax(b: Builder, node: fx.Node, m: nn.LogSoftmax | None = None) -> None:
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


def _pair(x: Any) -> tuple[int, int]:
    return (x, x) if isinstance(x, int) else (int(x[0]), int(x[1]))


def _flat(x: Any) -> list[Any]:
    return [y for part in x for y in _flat(part)] if isinstance(x, (tuple, list)) else [x]


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
