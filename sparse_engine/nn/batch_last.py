"""The memory order between layers: an ordinary NCHW tensor whose memory is [C, H, W, N].

One stored weight then meets a long contiguous run of every image in the batch. Shapes stay what users know,
only strides differ, so elementwise torch operations work as they are and keep the order.
"""

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from sparsefl.kernels.gather import Moves, X, gather

__all__ = ["Moves", "gathered", "is_batch_last", "to_images", "to_planes"]


def gathered(
    x: X,
    indices: NDArray[np.int64],
    mean: NDArray[np.float32] | None = None,
    std: NDArray[np.float32] | None = None,
    moves: Moves | None = None,
) -> Tensor:
    """Return samples of a data set as a batch [N, ...] in float32 whose memory is [..., N].

    x          uint8 or float32 [samples, ...], contiguous; may be read-only
    indices    which samples
    mean, std  per channel of images [samples, C, H, W]; else one, or one per entry of the last axis
    moves      how images are cropped and mirrored before that
    """
    return gather(x, indices, mean, std, moves).movedim(-1, 0)


def to_planes(x: Tensor) -> Tensor:
    """Return images [N, C, H, W] as contiguous planes [C, H, W, N]: a view if the memory is batch-last."""
    return x.permute(1, 2, 3, 0).contiguous()


def to_images(planes: Tensor) -> Tensor:
    """Return planes [C, H, W, N] as images [N, C, H, W] that share their memory."""
    return planes.permute(3, 0, 1, 2)


def is_batch_last(x: Tensor) -> bool:
    """Return whether the memory of this image tensor is [C, H, W, N]. A single image counts as batch-last."""
    return x.dim() == 4 and x.permute(1, 2, 3, 0).is_contiguous()
