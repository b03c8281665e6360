"""One workspace for a group and a batch size: values, gates, gradients, and what norms keep.

Nothing shares memory: weight gradients are computed last, of all layers in one launch, from all images.
"""

from collections.abc import Mapping, Sequence
from math import prod

import torch
from torch import Tensor

from sparse_engine.program.gpu.plan import LayerOp, NormOp, Plan
from sparse_engine.program.steps import Shape
from sparsefl.kernels.group_conv import Images


class Workspace:
    """value[v], gradient[v]: [G, channels, height, width, B];   gate[l], dz[l]: of layer l;   stats[y]: of
    the norm that makes y;   images: what the layers saw, in their order."""

    def __init__(self, plan: Plan, clients: int, batch: int, device: torch.device) -> None:
        self._ends, self._device = (clients, batch), device
        layers = [op for op in plan.ops if isinstance(op, LayerOp)]
        self.value = self._cut(plan.values, torch.float32)
        self.gradient = self._cut({v: plan.values[v] for v in plan.needed - plan.direct}, torch.float32)
        self.dz = self._cut(
            {op.number: plan.layer(op).z_shape for op in layers if plan.own_dz(op)}, torch.float32
        )
        gated = {op.number: plan.layer(op).y_shape for op in layers if plan.layer(op).gated}
        self.gate = self._cut(gated, torch.uint8)
        self.stats = {
            op.y: torch.empty(op.norm.stats_shape(clients, batch), device=device)
            for op in plan.ops
            if isinstance(op, NormOp)
        }
        for op in layers:
            if op.number not in self.dz:
                self.dz[op.number] = self.seen(self.gradient[op.y], plan.layer(op).z_shape)
        self.logits = self.value[plan.logits]
        images = {op.number: self.seen(self.value[op.x], plan.layer(op).x_shape) for op in layers}
        self.images = [Images(images[number], self.dz[number]) for number in sorted(images)]

    def seen(self, x: Tensor, shape: Shape) -> Tensor:
        """`x` as images of another shape."""
        return x.view(self._ends[0], *shape, self._ends[1])

    def _cut(self, shapes: Mapping[int, Shape], dtype: torch.dtype) -> dict[int, Tensor]:
        """Tensors [G, *shape, B] out of one allocation; each is whole numbers of 64 bytes long (B >= 16)."""
        clients, batch = self._ends
        sizes: Sequence[int] = [clients * prod(shape) * batch for shape in shapes.values()]
        whole = torch.empty(sum(sizes), dtype=dtype, device=self._device)
        pairs = zip(whole.split(list(sizes)), shapes.items(), strict=True)
        return {key: self.seen(part, shape) for part, (key, shape) in pairs}
