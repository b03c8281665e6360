"""A batch out of a data set, batch-last:   y[..., n] = (x[indices[n], ...] - mean) / std   in float32

x: uint8 or float32 [samples, ...], in memory or mapped from a file. Images [samples, C, H, W] have one mean
and std per channel; other samples one for everything, or one per entry of the last axis. Without them the
numbers stay as they are. Images may be moved first: see Moves. Zeros around an image are normalised, too.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sparsefl.kernels import memory, registry

_call = registry.bind(__name__)

X = NDArray[np.uint8] | NDArray[np.float32]
_LIKE = torch.empty(0)


class Moves(NamedTuple):
    """Image n of the batch is cut out of itself with `padding` zeros on each side, from row rows[n] and
    column columns[n] on, and then mirrored where mirrored[n]."""

    rows: NDArray[np.int64]
    columns: NDArray[np.int64]
    mirrored: NDArray[np.bool_]
    padding: int

    def part(self, now: slice) -> "Moves":
        """Those of some images."""
        return Moves(self.rows[now], self.columns[now], self.mirrored[now], self.padding)

    @classmethod
    def joined(cls, parts: "Sequence[Moves]") -> "Moves":
        """Those of several lists of images, one after the other; all with one padding."""
        rows, columns, mirrored, padding = zip(*parts, strict=True)
        return cls(np.concatenate(rows), np.concatenate(columns), np.concatenate(mirrored), padding[0])


def gather(
    x: X,
    indices: NDArray[np.int64],
    mean: NDArray[np.float32] | None = None,
    std: NDArray[np.float32] | None = None,
    moves: Moves | None = None,
) -> Tensor:
    """float32 [..., batch], new."""
    _check_samples(x, indices)
    _check_statistics(x, mean, std)
    if moves is not None:
        _check_moves(x, len(indices), moves)
    out = memory.empty((*x.shape[1:], len(indices)), _LIKE)
    if out.numel():
        _call("gather", out.device, x, indices, mean, std, moves, out)
    return out


def _check_samples(x: X, indices: NDArray[np.int64]) -> None:
    if x.dtype not in (np.uint8, np.float32) or x.ndim < 2 or not x.flags.c_contiguous:
        given = f"{x.dtype} {x.shape}, strides {x.strides}"
        raise ValueError(f"expected contiguous uint8 or float32 samples [n, ...], got {given}")
    _check_array("indices", indices, np.int64, indices.size)
    if len(indices) and not (0 <= indices.min() and indices.max() < len(x)):
        given = f"{indices.min()} to {indices.max()}"
        raise ValueError(f"expected indices from 0 to {len(x) - 1}, got {given}")


def _check_statistics(x: X, mean: NDArray[np.float32] | None, std: NDArray[np.float32] | None) -> None:
    if mean is None and std is None:
        return
    if mean is None or std is None:
        raise ValueError("expected a mean and a std, or neither, got one of them")
    lengths = {x.shape[1]} if x.ndim == 4 else {1, x.shape[-1]}
    if len(mean) not in lengths:
        wanted = " or ".join(map(str, sorted(lengths)))
        raise ValueError(f"expected {wanted} means of samples {x.shape[1:]}, got {len(mean)}")
    _check_array("mean", mean, np.float32, len(mean))
    _check_array("std", std, np.float32, len(mean))


def _check_moves(x: X, batch: int, moves: Moves) -> None:
    if x.ndim != 4:
        raise ValueError(f"expected images [n, C, H, W] to move, got {x.shape}")
    if moves.padding < 0:
        raise ValueError(f"expected a padding from 0, got {moves.padding}")
    _check_array("rows", moves.rows, np.int64, batch)
    _check_array("columns", moves.columns, np.int64, batch)
    _check_array("mirrored", moves.mirrored, np.bool_, batch)
    for name, starts in {"rows": moves.rows, "columns": moves.columns}.items():
        if batch and not (0 <= starts.min() and starts.max() <= 2 * moves.padding):
            given = f"{starts.min()} to {starts.max()}"
            raise ValueError(f"expected {name} from 0 to {2 * moves.padding}, got {given}")


def _check_array(name: str, given: NDArray, dtype: type, length: int) -> None:
    if given.dtype != dtype or given.shape != (length,) or not given.flags.c_contiguous:
        wanted = f"{name} as contiguous {np.dtype(dtype)} ({length},)"
        raise ValueError(f"expected {wanted}, got {given.dtype} {given.shape}, strides {given.strides}")
