"""A list of native steps while it is made: its buffers, by value and by gradient.

A value is a buffer [channels][height][width][lanes] of float32 or bfloat16. The gradient of a value has one
buffer: what the first reader of the value brings is written there, what others bring is added. A sum gives
the same buffer to both its inputs; it is written over only when nobody else still needs it.
"""

from dataclasses import dataclass, field
from math import prod
from typing import Any

from sparse_engine.program import steps
from sparse_engine.program.cpu.convs import ConvPlan
from sparse_engine.program.cpu.memory import Buffer, Planned
from sparse_engine.program.steps import Graph, Step
from sparsefl.kernels.sparse_conv._cpu_planes import FLOAT

NONE = -1  # in place of a buffer or a place in a model
MODES = ("train", "last", "evaluate", "grow")  # last: train, and keep the dense gradients of prunable weights


@dataclass
class List:
    """`mode`: one of MODES. `needed`: which inputs of the present step need a gradient."""

    graph: Graph
    convs: dict[int, ConvPlan]  # by the number of the step
    lanes: int
    mode: str
    itemsize: int = FLOAT  # bytes of an entry of a value or gradient
    planned: list[Planned] = field(default_factory=list)
    value: dict[int, Buffer] = field(default_factory=dict)
    gradient: dict[int, Buffer] = field(default_factory=dict)
    holders: dict[Buffer, set[int]] = field(default_factory=dict)
    saved: dict[int, dict[str, Any]] = field(default_factory=dict)  # what a step keeps for backward
    needed: list[bool] = field(default_factory=list)

    @property
    def trains(self) -> bool:
        """Are gradients of all that is trained wanted?"""
        return self.mode in ("train", "last")

    def size(self, v: int) -> int:
        return prod(self.graph.values[v]) * self.lanes

    def add(self, kind: str, **fields: Any) -> None:
        self.planned.append(Planned(kind, fields))

    def images(self, entries: int, what: str) -> Buffer:
        """A buffer of entries as values and gradients have them."""
        return Buffer(-(-entries * self.itemsize // FLOAT), what)

    def new(self, v: int, what: str = "value") -> Buffer:
        return self.images(self.size(v), f"{what} {v}")

    def trained_values(self) -> set[int]:
        """Values that depend on what is trained: theirs are the gradients that somebody needs."""
        found: set[int] = set()
        for step in self.graph.steps:
            if isinstance(step, steps.Conv) or step.parameters or found & {*step.inputs}:
                found.add(step.y)
        return found

    def evaluate(self, last: int) -> None:
        classes = self.graph.values[last][0]
        scratch = Buffer(2 * classes * self.lanes, "logits of the samples")
        self.add("Correct", logits=self.value[last], classes=classes, lanes=self.lanes, scratch=scratch)

    def loss(self, last: int) -> None:
        classes = self.graph.values[last][0]
        scratch = Buffer((1 + 3 * classes) * self.lanes, "loss")
        self.gradient[last] = self.new(last, "gradient")
        self.holders[self.gradient[last]] = {last}
        logits = {"logits": self.value[last], "dlogits": self.gradient[last]}
        self.add("Loss", **logits, classes=classes, lanes=self.lanes, scratch=scratch)

    def _alone(self, v: int) -> bool:
        """May the gradient of v be written over?"""
        return self.holders[self.gradient[v]] == {v}

    def over(self, v: int) -> Buffer:
        """Where a step of the same size writes: over the gradient of v, or beside it if others need that."""
        return self.gradient[v] if self._alone(v) else self.new(v, "gradient")

    def replace(self, v: int, buffer: Buffer) -> None:
        if buffer is not self.gradient[v]:
            self.holders[self.gradient[v]].discard(v)
            self.gradient[v] = buffer
            self.holders.setdefault(buffer, set()).add(v)

    def contribute(self, v: int, buffer: Buffer) -> None:
        """`buffer` is, or is a part of, the gradient of v."""
        if v not in self.gradient:
            self.gradient[v] = buffer
            self.holders.setdefault(buffer, set()).add(v)
            return
        to = self.gradient[v] if self._alone(v) else self.new(v, "gradient")
        self.add("Add", a=self.gradient[v], b=buffer, y=to, size=self.size(v))
        self.replace(v, to)

    def masked(self, step: Step) -> Buffer:
        """The gradient of y where y > 0, for a step with relu."""
        to = self.over(step.y)
        self.add(
            "ReluBackward", dy=self.gradient[step.y], y=self.value[step.y], dx=to, size=self.size(step.y)
        )
        self.replace(step.y, to)
        return to
