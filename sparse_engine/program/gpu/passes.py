"""A pass forward and one backward over a group's workspace, as launches in the order of the plan."""

from dataclasses import dataclass

from torch import Tensor

from sparse_engine.program.gpu.memory import Workspace
from sparse_engine.program.gpu.plan import AddOp, LayerOp, MeanOp, NormOp, Plan
from sparsefl.kernels import group_conv, group_norm, group_sum
from sparsefl.kernels.group import Group


@dataclass(frozen=True)
class Passes:
    """`gradients`: an arena, into which norms write; layers' are written after the pass, all at once."""

    plan: Plan
    work: Workspace
    group: Group
    arena: Tensor
    gradients: Tensor
    order: Tensor
    clock: Tensor

    def forward(self, training: bool) -> None:
        work = self.work
        for op in self.plan.ops:
            x, y = work.value[op.x], work.value[op.y]
            if isinstance(op, LayerOp):
                x = work.seen(x, self.plan.layer(op).x_shape)
                group_conv.forward(self.group, op.number, self.arena, x, y, work.gate.get(op.number))
            elif isinstance(op, NormOp):
                given = work.stats[op.y], self.order, self.clock, training
                group_norm.forward(self.group, op.norm, self.arena, x, y, *given)
            elif isinstance(op, AddOp):
                group_sum.add(x, None if op.other is None else work.value[op.other], y, op.relu)
            elif isinstance(op, MeanOp):
                group_sum.mean(x, op.window, y)

    def backward(self) -> None:
        """From the gradient of the logits."""
        written = {self.plan.logits}  # values whose gradient holds something
        for op in reversed(self.plan.ops):
            if op.y not in self.plan.needed:
                continue
            if isinstance(op, LayerOp):
                self._layer(op, written)
            elif isinstance(op, NormOp):
                self._norm(op, written)
            elif isinstance(op, AddOp):
                self._add(op, written)
            elif isinstance(op, MeanOp) and op.x in self.plan.needed:
                to, more = self._to(op.x, written)
                group_sum.mean_gradient(self.work.gradient[op.y], op.window, to, more)

    def _layer(self, op: LayerOp, written: set[int]) -> None:
        work, plan = self.work, self.plan
        layer, dz = plan.layer(op), work.dz[op.number]
        if op.y not in plan.direct and layer.gated:
            group_sum.opened(layer, work.gradient[op.y], work.gate[op.number], dz)
        if op.x not in plan.needed:
            return
        if op.x in plan.direct:
            before = plan.maker(op.x)
            to = work.dz[before.number], plan.layer(before), work.gate.get(before.number)
            group_conv.input_gradient(self.group, op.number, self.arena, dz, *to)
        else:
            dx, more = self._to(op.x, written)
            dx = work.seen(dx, layer.x_shape)
            group_conv.input_gradient(self.group, op.number, self.arena, dz, dx, more=more)

    def _norm(self, op: NormOp, written: set[int]) -> None:
        work = self.work
        dx, more = self._to(op.x, written) if op.x in self.plan.needed else (None, False)
        seen = work.value[op.x], work.value[op.y], work.stats[op.y], self.order, self.clock
        given = work.gradient[op.y], self.gradients, dx, more
        group_norm.backward(self.group, op.norm, self.arena, *seen, *given)

    def _add(self, op: AddOp, written: set[int]) -> None:
        y = self.work.value[op.y] if op.relu else None
        for x in (op.x, op.other):
            if x is not None and x in self.plan.needed:
                dx, more = self._to(x, written)
                group_sum.add_gradient(self.work.gradient[op.y], y, dx, more)

    def _to(self, value: int, written: set[int]) -> tuple[Tensor, bool]:
        """Where the gradient of a value goes, and whether it is added to what is there."""
        more = value in written
        written.add(value)
        return self.work.gradient[value], more
