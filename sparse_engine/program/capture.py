"""A network into a Graph: trace.py has its nodes, nodes.py what they become, fuse.py fewer passes of memory.

What a Graph has no step for is `NotCaptured`, with the reason in words: such a network runs layer by layer.
"""

import copy

from torch import nn

from sparse_engine.model.model import Layout
from sparse_engine.program import nodes, trace
from sparse_engine.program.builder import Builder, input_shape
from sparse_engine.program.fuse import fuse
from sparse_engine.program.steps import Graph, Step
from sparse_engine.program.trace import NotCaptured

__all__ = ["NotCaptured", "capture"]


def capture(net: nn.Module, sample: tuple[int, ...], layout: Layout) -> Graph:
    """Return the graph of a dense `net` for samples of that shape; `layout` is that of its models."""
    net = copy.deepcopy(net)
    trace.check(net)
    traced = trace.traced(net)
    builder = Builder(net, layout, trace.shapes(net, traced, sample), values=[input_shape(sample)])
    for node in traced.nodes:
        nodes.add(builder, node)
    unused = [name for name, _ in net.named_parameters() if name not in builder.used]
    if unused:
        raise NotCaptured(f"{unused[0]} has no part in forward")
    _check_result(builder.done, builder.result)
    found = fuse(builder.done, builder.result)
    return Graph(type(net).__name__, layout, tuple(sample), tuple(builder.values), tuple(found))


def _check_result(done: list[Step], result: int) -> None:
    """A step that nobody reads would train nothing, and what a norm keeps would not move."""
    read = {x for step in done for x in step.inputs} | {result}
    for step in done:
        if step.y not in read:
            raise NotCaptured(f"{step.name} does not lead to the result")
    if not done:
        raise NotCaptured("its result is the batch itself")
