"""ReLU into the step before it, or past the max pool after it. Every rule keeps results to the last bit."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from sparse_engine.program.steps import Add, BatchNorm, Conv, GroupNorm, MaxPool, Relu, Step

_TAKES_RELU = (Conv, GroupNorm, BatchNorm, Add)


def fuse(steps: Sequence[Step], result: int) -> list[Step]:
    """Return the steps that lead to the value `result`, with fewer passes over memory."""
    found = _needed(steps, result)
    found = _relu_after_pool(found)
    return _relu_into_the_step_before(found)


def _needed(steps: Sequence[Step], result: int) -> list[Step]:
    wanted, kept = {result}, []
    for step in reversed(steps):
        if step.y in wanted:
            wanted.update(step.inputs)
            kept.append(step)
    return kept[::-1]


def _relu_after_pool(steps: Sequence[Step]) -> list[Step]:
    """max pool of relu = relu of max pool, forward and backward, and a quarter of the numbers see relu."""
    reads = _readers(steps)
    relus = {step.y: step for step in steps if isinstance(step, Relu) and reads[step.y] == 1}
    pools = {step.x for step in steps if isinstance(step, MaxPool)}
    gone = {y for y in relus if y in pools}
    return [
        replace(step, x=relus[step.x].x, relu=True) if isinstance(step, MaxPool) and step.x in gone else step
        for step in steps
        if step.y not in gone
    ]


def _relu_into_the_step_before(steps: Sequence[Step]) -> list[Step]:
    reads = _readers(steps)
    made = {step.y: step for step in steps}
    into = {
        step.x: step.y
        for step in steps
        if isinstance(step, Relu) and reads[step.x] == 1 and isinstance(made.get(step.x), _TAKES_RELU)
    }
    relus = set(into.values())
    found = []
    for step in steps:
        if step.y in relus and isinstance(step, Relu):
            continue
        if step.y in into and isinstance(step, _TAKES_RELU):
            step = replace(step, y=into[step.y], relu=True)
        found.append(step)
    return found


def _readers(steps: Sequence[Step]) -> Counter[int]:
    return Counter(x for step in steps for x in step.inputs)
