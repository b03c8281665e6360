"""A graph on the native kernels, for one number of lanes and one choice of kernels."""

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

from sparse_engine.choice import plan
from sparse_engine.program import steps
from sparse_engine.program.cpu import lists
from sparse_engine.program.cpu.convs import ConvPlan, Kernels
from sparse_engine.program.cpu.listing import MODES
from sparse_engine.program.cpu.memory import Buffer, Places, Planned, place
from sparse_engine.program.steps import Graph
from sparsefl.kernels.native import extension
from sparsefl.kernels.sparse_conv import DIRECTIONS, Geometry, joined, split
from sparsefl.kernels.sparse_conv._cpu_planes import FLOAT


def choose(graph: Graph, counts: tuple[int, ...], lanes: int, bf16: bool = False) -> tuple[Kernels, ...]:
    """Return the kernels of every convolution, for models that store `counts` entries of each weight; bf16:
    on images of bfloat16."""
    now, found = plan.current(), []
    for step in graph.steps:
        if isinstance(step, steps.Conv):
            g = step.geometry
            segment = step.weight.segment
            density = (
                1 / step.groups if segment is None else counts[segment] / max(1, prod(step.weight.shape))
            )
            image = (*graph.values[step.x][1:], lanes)
            shape = (g.out_channels, g.in_channels, g.kernel, g.stride, g.padding, g.dilation)
            part, whole = Geometry(*shape, density), Geometry(*shape, 1.0)
            forward, back, weight = (now.kernel(part, way, *image, bf16, native=True) for way in DIRECTIONS)
            growth = now.kernel(whole, DIRECTIONS[2], *image, bf16, native=True)
            name, isa = split(growth)
            growth = joined("dense", isa) if name == "sparse" else growth
            found.append(Kernels(forward, back, weight, growth))
    return tuple(found)


@dataclass(frozen=True)
class CpuProgram:
    """`native` is csrc/program/program.h's. It keeps the orders of the last mask: not for two threads."""

    graph: Graph
    lanes: int
    kernels: tuple[Kernels, ...]
    bf16: bool = False  # values and gradients are bfloat16
    dot: bool = False  # ... and products of their pairs have an instruction

    @property
    def itemsize(self) -> int:
        """Bytes of an entry of a value or gradient."""
        return 2 if self.bf16 else FLOAT

    @cached_property
    def convs(self) -> dict[int, ConvPlan]:
        numbered = [(i, step) for i, step in enumerate(self.graph.steps) if isinstance(step, steps.Conv)]
        values = self.graph.values
        return {
            i: ConvPlan(step, values[step.x], values[step.y], self.lanes, kernels, self.itemsize, self.dot)
            for (i, step), kernels in zip(numbered, self.kernels, strict=True)
        }

    @cached_property
    def planned(self) -> dict[str, list[Planned]]:
        """The steps of every mode."""
        return {mode: lists.make(self.graph, self.convs, self.lanes, mode, self.itemsize) for mode in MODES}

    @cached_property
    def places(self) -> dict[str, Places]:
        return {mode: place(planned) for mode, planned in self.planned.items()}

    @cached_property
    def native(self) -> Any:
        planned = {mode: self.planned[mode] for mode in MODES}  # directions are known from here on
        convs = {id(conv): conv.native() for conv in self.convs.values()}
        made = {mode: [self._made(step, mode, convs) for step in planned[mode]] for mode in MODES}
        layout = self.graph.layout
        return extension().program.Program(
            lanes=self.lanes,
            input=0,
            rows=prod(self.graph.values[0]),
            size=max(found.size for found in self.places.values()),
            bf16=self.bf16,
            dot=self.dot,
            segments=len(layout.names),
            rest=sum(prod(entry.shape) for entry in layout.floats),
            trained=[number for part in self.graph.trained for number in part],
            convs=[*convs.values()],
            **made,
        )

    def _made(self, step: Planned, mode: str, convs: dict[int, Any]) -> Any:
        at = self.places[mode].at

        def made(x: Any) -> Any:
            return convs[id(x)] if isinstance(x, ConvPlan) else at[x] if isinstance(x, Buffer) else x

        fields = {name: made(x) for name, x in step.fields.items()}
        return getattr(extension().program, step.kind)(**fields)
