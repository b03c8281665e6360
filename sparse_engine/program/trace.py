"""A network's forward as torch.fx traces it, and what each of its nodes gives.

The trace is symbolic: control flow that depends on values, or on shapes, cannot slip through. Shapes come
from a run on torch's "meta" device, at two batch sizes, which must agree.
"""

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from sparse_engine.nn.layer import HOOKS


class NotCaptured(ValueError):
    """Why a network is no program, in words."""


def check(net: nn.Module) -> None:
    """Raise NotCaptured if something of `net` would not be in a trace."""
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


def traced(net: nn.Module) -> fx.Graph:
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


def shapes(net: nn.Module, graph: fx.Graph, sample: tuple[int, ...]) -> dict[fx.Node, Any]:
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


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
