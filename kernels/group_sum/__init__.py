"""What a group's network has between layers and norms: sums, ReLU, average pools, and gates on the way back.

    add            y = a + b (or a alone), relu of it
    add_gradient   dx = dy where y > 0 (relu),   or that much more
    mean           y = mean of a over each window; windows lie side by side
    mean_gradient  dx = dy of the window / its places, 0 outside of windows,   or that much more
    opened         dz = dy where the gate is open (kernels/group.py), 0 elsewhere

Images are [G, channels, height, width, B]. What "or that much more" adds to is what dx has.
"""

import torch
from torch import Tensor

from sparsefl.kernels import checks, registry
from sparsefl.kernels.group import BATCHES, Layer

__all__ = ["add", "add_gradient", "mean", "mean_gradient", "opened"]

_call = registry.bind(__name__)


def add(a: Tensor, b: Tensor | None, y: Tensor, relu: bool = False) -> None:
    """Writes y; b None: a alone. y may be one of them."""
    _check(a=a, b=a if b is None else b, y=y)
    checks.same_shape(a=a, b=a if b is None else b, y=y)
    _call("group_add", a.device, a, b, y, relu)


def add_gradient(dy: Tensor, y: Tensor | None, dx: Tensor, more: bool = False) -> None:
    """Writes dx, or adds to it; y: of a step with ReLU."""
    _check(dy=dy, y=dy if y is None else y, dx=dx)
    checks.same_shape(dy=dy, y=dy if y is None else y, dx=dx)
    _call("group_add_gradient", dy.device, dy, y, dx, more)


def mean(x: Tensor, window: tuple[int, int], y: Tensor) -> None:
    """Writes y."""
    _check(x=x, y=y)
    _check_window(x, window, y)
    _call("group_mean", x.device, x, window, y)


def mean_gradient(dy: Tensor, window: tuple[int, int], dx: Tensor, more: bool = False) -> None:
    """Writes dx, or adds to it."""
    _check(dy=dy, dx=dx)
    _check_window(dx, window, dy)
    _call("group_mean_gradient", dy.device, dy, window, dx, more)


def opened(layer: Layer, dy: Tensor, gate: Tensor, dz: Tensor) -> None:
    """Writes the gradient of the layer's z from that of its y."""
    _check(dy=dy, dz=dz)
    checks.dtype(torch.uint8, gate=gate)
    checks.contiguous(gate=gate)
    checks.same_shape(dy=dy, gate=gate)
    if tuple(dy.shape[1:4]) != layer.y_shape or tuple(dz.shape[1:4]) != layer.z_shape:
        raise ValueError(
            f"expected dy {layer.y_shape} and dz {layer.z_shape}, got {tuple(dy.shape)} and {tuple(dz.shape)}"
        )
    _call("group_opened", dy.device, layer, dy, gate, dz)


def _check(**images: Tensor) -> None:
    checks.dtype(torch.float32, torch.float64, **images)
    checks.contiguous(**images)
    checks.same_device(**images)
    for name, x in images.items():
        if x.dim() != 5 or x.shape[-1] not in BATCHES:
            lanes = " or ".join(map(str, BATCHES))
            raise ValueError(
                f"expected {name} as [G, channels, height, width, {lanes}], got {tuple(x.shape)}"
            )


def _check_window(x: Tensor, window: tuple[int, int], y: Tensor) -> None:
    wanted = (*x.shape[:2], x.shape[2] // window[0], x.shape[3] // window[1], x.shape[-1])
    if tuple(y.shape) != wanted or min(wanted) < 1:
        raise ValueError(f"expected means over {window} of {tuple(x.shape)}: {wanted}, got {tuple(y.shape)}")
