"""Plain torch: the specification of a bias's gradient."""

import torch
from torch import Tensor

from sparsefl.kernels.registry import register


@register("bias_gradient", "reference")
def bias_gradient(dy: Tensor, db: Tensor) -> None:
    db.copy_(dy.sum(1, dtype=torch.float64))
