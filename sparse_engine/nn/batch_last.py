"""The layout between layers: an ordinary NCHW tensor whose memory is [C, H, W, N].

One stored weight then meets a long contiguous run of every image in the batch. Shapes stay what users know,
only strides differ, so elementwise torch operations work as they are and keep the layout.
"""

from torch import Tensor


def to_planes(x: Tensor) -> Tensor:
    """Contiguous [C, H, W, N] of images [N, C, H, W]: a view where the memory is batch-last already."""
    return x.permute(1, 2, 3, 0).contiguous()


def to_images(planes: Tensor) -> Tensor:
    """[N, C, H, W], sharing memory with planes [C, H, W, N]."""
    return planes.permute(3, 0, 1, 2)


def is_batch_last(x: Tensor) -> bool:
    """Is the memory of this image tensor [C, H, W, N]? (A single image is both; it counts as batch-last.)"""
    return x.dim() == 4 and x.permute(1, 2, 3, 0).is_contiguous()
