"""Native dropout."""

from torch import Tensor

from sparsefl.kernels.native import extension, num_threads, pointer
from sparsefl.kernels.registry import register


@register("dropout", "cpu")
def dropout(x: Tensor, p: float, seed: int, step: int, y: Tensor) -> None:
    how = extension().Dropout(p=p, seed=seed, step=step)
    extension().dropout(how, *x.shape, pointer(x), pointer(y), num_threads())
