"""The memory order between layers: an ordinary NCHW tensor whose memory is [C, H, W, N].

One stored weight then meets a long contiguous run of every image in the batch. Shapes stay what users know,
only strides differ, so elementwise torch operations work as they are and keep the order.
"""

from torch import Tensor


def to_planes(x: Tensor) -> Tensor:
    """Return images [N, C, H, W] as contiguous planes [C, H, W, N]: a view if the memory is batch-last."""
    return x.permute(1, 2, 3, 0).contiguous()


def to_images(planes: Tensor) -> Tensor:
    """Return planes [C, H, W, N] as images [N, C, H, W] that share their memory."""
    return planes.permute(3, 0, 1, 2)


def is_batch_last(x: Tensor) -> bool:
    """Return whether the memory of this image tensor is [C, H, W, N]. A single image counts as batch-last."""
    return x.dim() == 4 and x.permute(1, 2, 3, 0).is_contiguous()
