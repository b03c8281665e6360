"""One workspace for a group and a batch size: images, gates and gradients of all layers.

Nothing shares memory: weight gradients are computed last, of all layers in one launch, from all images.
"""

from itertools import pairwise
from math import prod

import torch
from torch import Tensor

from sparse_engine.program.gpu.chain import Chain
from sparsefl.kernels.group_conv import Images


class Workspace:
    """x[l], dz[l], gate[l]: of layer l in the order of `chain.order`; `logits` is what the last one makes."""

    def __init__(self, chain: Chain, clients: int, batch: int, device: torch.device) -> None:
        layers = [chain.network.layers[number] for number in chain.order]
        ends = clients, batch
        floats = [
            layers[0].x_shape,
            *(layer.y_shape for layer in layers),
            *(layer.z_shape for layer in layers),
        ]
        self._floats = _cut(floats, ends, torch.float32, device)
        self.x, self.dz = self._floats[: len(layers)], self._floats[len(layers) + 1 :]
        for i, (_, layer) in enumerate(pairwise(layers), 1):  # a vector may be the image of the layer before
            self.x[i] = self.x[i].view(clients, *layer.x_shape, batch)
        self.logits = self._floats[len(layers)]
        self._y = [*self._floats[1 : len(layers)], self.logits]
        gated = [i for i, layer in enumerate(layers) if layer.gated]
        gates = _cut([layers[i].y_shape for i in gated], ends, torch.uint8, device)
        self.gate: list[Tensor | None] = [None] * len(layers)
        for i, gate in zip(gated, gates, strict=True):
            self.gate[i] = gate
        numbered = sorted(zip(chain.order, self.x, self.dz, strict=True), key=lambda each: each[0])
        self.images = [Images(x, dz) for _, x, dz in numbered]

    @property
    def y(self) -> list[Tensor]:
        """What every layer makes."""
        return self._y

    @property
    def nbytes(self) -> int:
        return sum(x.nbytes for x in self._floats) + sum(x.nbytes for x in self.gate if x is not None)


def _cut(
    shapes: list[tuple[int, int, int]], ends: tuple[int, int], dtype: torch.dtype, device: torch.device
) -> list[Tensor]:
    """Tensors [G, *shape, B] out of one allocation; each is whole numbers of 64 bytes long (B >= 16)."""
    sizes = [ends[0] * prod(shape) * ends[1] for shape in shapes]
    whole = torch.empty(sum(sizes), dtype=dtype, device=device)
    return [
        part.view(ends[0], *shape, ends[1]) for part, shape in zip(whole.split(sizes), shapes, strict=True)
    ]
