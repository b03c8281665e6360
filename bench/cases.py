"""What is measured: the paper's networks as shapes, and models made of them."""

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

import sparse_engine as se
from sparsefl.kernels import bitmap
from sparsefl.kernels.layout import Bitmap, Packed, Segments

DENSITIES = (0.5, 0.2, 0.1)


def resnet18_shapes(classes: int = 10) -> dict[str, tuple[int, ...]]:
    """Prunable weights of ResNet18 for 32x32 images: 10,992,320 with 10 classes; shortcuts are exempt."""
    shapes: dict[str, tuple[int, ...]] = {"conv1": (64, 3, 3, 3)}
    channels = 64
    for layer, width in enumerate((64, 128, 256, 512), start=1):
        for block in (0, 1):
            shapes[f"layer{layer}.{block}.conv1"] = (width, channels, 3, 3)
            shapes[f"layer{layer}.{block}.conv2"] = (width, width, 3, 3)
            channels = width
    shapes["linear"] = (classes, 512)
    return shapes


@dataclass(frozen=True)
class Model:
    """A model in both forms: packed on its bitmap, and masked dense as PyTorch users hold it."""

    packed: Packed
    dense: Tensor  # zero outside the mask
    mask: Tensor  # bool

    @property
    def bitmap(self) -> Bitmap:
        return self.packed.bitmap


def model(shapes: dict[str, tuple[int, ...]], density: float, seed: int) -> Model:
    masks = se.erk_masks(shapes, density, seed=seed)
    mask = torch.cat([masks[name].view(-1) for name in shapes])
    pattern = bitmap.from_mask(mask, Segments(tuple(prod(shape) for shape in shapes.values())))
    values = torch.randn(pattern.nnz, generator=torch.Generator().manual_seed(seed)) * 0.05
    dense = torch.zeros(mask.numel())
    dense[mask] = values
    return Model(Packed(pattern, values), dense, mask)
