"""NumPy: the specification of gathering a batch."""

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from torch import Tensor

from sparsefl.kernels.gather import Moves, X
from sparsefl.kernels.registry import register


@register("gather", "reference")
def gather(
    x: X,
    indices: NDArray[np.int64],
    mean: NDArray[np.float32] | None,
    std: NDArray[np.float32] | None,
    moves: Moves | None,
    out: Tensor,
) -> None:
    chosen = x[indices]
    if moves is not None:
        chosen = moved(chosen, moves)
    floats = chosen.astype(np.float32)
    if mean is not None and std is not None:
        shape = (-1, 1, 1) if x.ndim == 4 else (-1,)
        floats = (floats - mean.reshape(shape)) / std.reshape(shape)
    out.copy_(torch.from_numpy(np.moveaxis(floats, 0, -1)))


def moved(images: X, moves: Moves) -> X:
    """The images, padded, cut out and mirrored."""
    n, channels, height, width = images.shape
    pad = moves.padding
    padded = np.zeros((n, channels, height + 2 * pad, width + 2 * pad), dtype=images.dtype)
    padded[:, :, pad : pad + height, pad : pad + width] = images
    windows = sliding_window_view(padded, (height, width), axis=(2, 3))  # [n, C, 2 pad + 1, 2 pad + 1, H, W]
    out = windows[np.arange(n), :, moves.rows, moves.columns]
    out[moves.mirrored] = out[moves.mirrored, :, :, ::-1]
    return out
