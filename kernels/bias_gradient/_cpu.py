"""Native gradient of a bias."""

from torch import Tensor

from sparsefl.kernels.native import extension, num_threads, pointer
from sparsefl.kernels.registry import register


@register("bias_gradient", "cpu")
def bias_gradient(dy: Tensor, db: Tensor) -> None:
    extension().bias_gradient(*dy.shape, pointer(dy), pointer(db), num_threads())
