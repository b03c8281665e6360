"""Argument checks that the operations share. A ValueError says what was wanted and what came, by name."""

import torch
from torch import Tensor

FLOATS = (torch.float32, torch.float64)


def same_shape(**tensors: Tensor) -> None:
    shapes = {name: tuple(x.shape) for name, x in tensors.items()}
    if len(set(shapes.values())) > 1:
        raise ValueError(f"expected one shape, got {shapes}")


def contiguous(**tensors: Tensor) -> None:
    strided = {name: x.stride() for name, x in tensors.items() if not x.is_contiguous()}
    if strided:
        raise ValueError(f"expected contiguous tensors, got strides {strided}")


def dtype(*wanted: torch.dtype, **tensors: Tensor) -> None:
    wrong = {name: x.dtype for name, x in tensors.items() if x.dtype not in wanted}
    if wrong:
        raise ValueError(f"expected dtype {' or '.join(map(str, wanted))}, got {wrong}")


def same_dtype(**tensors: Tensor) -> None:
    dtypes = {name: x.dtype for name, x in tensors.items()}
    if len(set(dtypes.values())) > 1:
        raise ValueError(f"expected one dtype, got {dtypes}")


def same_device(**tensors: Tensor) -> None:
    devices = {name: str(x.device) for name, x in tensors.items()}
    if len(set(devices.values())) > 1:
        raise ValueError(f"expected one device, got {devices}")


def flat(**tensors: Tensor) -> None:
    """1-D, contiguous, float32 or float64: what packed values are."""
    shapes = {name: tuple(x.shape) for name, x in tensors.items() if x.dim() != 1}
    if shapes:
        raise ValueError(f"expected 1-D tensors, got {shapes}")
    contiguous(**tensors)
    dtype(*FLOATS, **tensors)
    same_device(**tensors)


def length(wanted: int, what: str, **tensors: Tensor) -> None:
    wrong = {name: x.numel() for name, x in tensors.items() if x.numel() != wanted}
    if wrong:
        raise ValueError(f"expected {wanted} {what}, got {wrong}")
