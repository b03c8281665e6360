"""Argument checks that the operations share. A ValueError says what was wanted and what came, by name.

They run at every call of every operation, so each is a plain loop; texts are made when something is wrong.
"""

from typing import NoReturn

import torch
from torch import Tensor

FLOATS = (torch.float32, torch.float64)
IMAGES = (*FLOATS, torch.bfloat16)  # of tensors between layers; what belongs to weights stays float32 then


def same_shape(**tensors: Tensor) -> None:
    first, *others = tensors.values()
    for x in others:
        if x.shape != first.shape:
            _refuse("one shape", {name: tuple(x.shape) for name, x in tensors.items()})


def contiguous(**tensors: Tensor) -> None:
    for x in tensors.values():
        if not x.is_contiguous():
            strided = {name: x.stride() for name, x in tensors.items() if not x.is_contiguous()}
            _refuse("contiguous tensors", strided, "strides ")


def dtype(*wanted: torch.dtype, **tensors: Tensor) -> None:
    for x in tensors.values():
        if x.dtype not in wanted:
            wrong = {name: x.dtype for name, x in tensors.items() if x.dtype not in wanted}
            _refuse(f"dtype {' or '.join(map(str, wanted))}", wrong)


def same_dtype(**tensors: Tensor) -> None:
    first, *others = tensors.values()
    for x in others:
        if x.dtype != first.dtype:
            _refuse("one dtype", {name: x.dtype for name, x in tensors.items()})


def same_precision(x: Tensor, **others: Tensor | None) -> None:
    """What belongs to weights and sums: of x's dtype, or float32 where x is bfloat16."""
    given = {name: t for name, t in others.items() if t is not None}
    if x.dtype != torch.bfloat16:
        same_dtype(images=x, **given)
    elif any(t.dtype != torch.float32 for t in given.values()):
        got = {name: t.dtype for name, t in given.items()}
        _refuse("torch.float32 beside images of torch.bfloat16", got)


def same_device(**tensors: Tensor) -> None:
    first, *others = tensors.values()
    for x in others:
        if x.device != first.device:
            _refuse("one device", {name: str(x.device) for name, x in tensors.items()})


def flat(**tensors: Tensor) -> None:
    """1-D, contiguous, float32 or float64, on one device: what packed values are."""
    for x in tensors.values():
        if x.dim() != 1:
            shapes = {name: tuple(x.shape) for name, x in tensors.items() if x.dim() != 1}
            _refuse("1-D tensors", shapes)
    contiguous(**tensors)
    dtype(*FLOATS, **tensors)
    same_device(**tensors)


def length(wanted: int, what: str, **tensors: Tensor) -> None:
    for x in tensors.values():
        if x.numel() != wanted:
            wrong = {name: x.numel() for name, x in tensors.items() if x.numel() != wanted}
            _refuse(f"{wanted} {what}", wrong)


def _refuse(wanted: str, got: object, kind: str = "") -> NoReturn:
    raise ValueError(f"expected {wanted}, got {kind}{got}")
