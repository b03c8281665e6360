"""Native gathering of a batch."""

from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from sparsefl.kernels.gather import Moves, X
from sparsefl.kernels.native import address, extension, num_threads, pointer
from sparsefl.kernels.registry import register


@register("gather", "cpu")
def gather(
    x: X,
    indices: NDArray[np.int64],
    mean: NDArray[np.float32] | None,
    std: NDArray[np.float32] | None,
    moves: Moves | None,
    out: Tensor,
) -> None:
    chosen = address(indices, np.int64), len(indices)
    extension().gather(
        native_samples(x, mean, std), *chosen, native_moves(moves), pointer(out), num_threads()
    )


def native_samples(x: X, mean: NDArray[np.float32] | None, std: NDArray[np.float32] | None) -> Any:
    """The structure Samples of the native code (csrc/layers/shapes.h). It keeps no array alive."""
    channels, height, width = x.shape[1:] if x.ndim == 4 else (1, prod(x.shape[1:-1]), x.shape[-1])
    own = mean is not None and len(mean) > 1  # else one mean for everything
    return extension().Samples(
        data=address(x, x.dtype.type),
        bytes=x.dtype == np.uint8,
        channels=channels,
        height=height,
        width=width,
        mean=0 if mean is None else address(mean, np.float32),
        std=0 if std is None else address(std, np.float32),
        channel_step=int(own and x.ndim == 4),
        column_step=int(own and x.ndim != 4),
    )


def native_moves(given: Moves | None) -> Any:
    """The structure Moves of the native code. It keeps no array alive."""
    if given is None:
        return extension().Moves(rows=0, columns=0, mirrored=0, padding=0)
    return extension().Moves(
        rows=address(given.rows, np.int64),
        columns=address(given.columns, np.int64),
        mirrored=address(given.mirrored, np.bool_),
        padding=given.padding,
    )
