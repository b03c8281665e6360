"""Native loss."""

import torch
from torch import Tensor

from sparsefl.kernels.native import extension, num_threads, pointer
from sparsefl.kernels.registry import register


@register("cross_entropy", "cpu")
def cross_entropy(logits: Tensor, labels: Tensor, losses: Tensor, gradient: Tensor | None) -> float:
    into = pointer(losses), 0 if gradient is None else pointer(gradient)
    return extension().cross_entropy(*_given(logits, labels), *into, num_threads())


@register("count_correct", "cpu")
def count_correct(logits: Tensor, labels: Tensor) -> int:
    return extension().count_correct(*_given(logits, labels), num_threads())


def _given(logits: Tensor, labels: Tensor) -> tuple[int, ...]:
    return *logits.shape, pointer(logits), pointer(labels, torch.int64)
