"""Batches of one client: bytes become float32 [n, C, H, W], (x - mean) / std, and int64 labels.

In training the order is random, and where the set says so (CIFAR) every image is cropped at random out of
itself with 4 black pixels around it, and mirrored with probability 1/2. All of an epoch's randomness is drawn
when it starts: neither the batch size nor how far somebody reads changes it.
"""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from torch import Tensor

from fl.data.dataset import Dataset, Part

PAD = 4
Batch = tuple[Tensor, Tensor]


def batches(
    data: Dataset,
    indices: NDArray[np.integer],
    batch_size: int,
    rng: np.random.Generator,
    *,
    augment: bool | None = None,
) -> Iterator[Batch]:
    """One epoch over the training samples `indices`, the last small batch included.

    `augment` overrides the data set's own flag. One random batch: next(batches(...)).
    """
    _check(batch_size, indices, data.train)
    order = rng.permutation(indices)
    shifts, mirrored = rng.integers(0, 2 * PAD + 1, (2, len(order))), rng.random(len(order)) < 0.5
    change = data.augment if augment is None else augment
    return _train(data, order, shifts, mirrored, batch_size, change)


def evaluation_batches(data: Dataset, indices: NDArray[np.integer], batch_size: int) -> Iterator[Batch]:
    """The test samples `indices` in their order, as they are."""
    _check(batch_size, indices, data.test)
    return (
        _batch(data, data.test.take(indices[start : start + batch_size]))
        for start in range(0, len(indices), batch_size)
    )


def _train(
    data: Dataset, order: NDArray, shifts: NDArray, mirrored: NDArray, batch_size: int, change: bool
) -> Iterator[Batch]:
    for start in range(0, len(order), batch_size):
        now = slice(start, start + batch_size)
        part = data.train.take(order[now])
        if change:
            part = Part(crop_and_mirror(part.images, shifts[:, now], mirrored[now]), part.labels)
        yield _batch(data, part)


def crop_and_mirror(images: NDArray[np.uint8], shifts: NDArray, mirrored: NDArray) -> NDArray[np.uint8]:
    """Image i, padded, from row shifts[0, i] and column shifts[1, i] on, and mirrored where mirrored[i]."""
    n, channels, height, width = images.shape
    padded = np.zeros((n, channels, height + 2 * PAD, width + 2 * PAD), dtype=np.uint8)  # np.pad is slow
    padded[:, :, PAD:-PAD, PAD:-PAD] = images
    windows = sliding_window_view(padded, (height, width), axis=(2, 3))  # [n, C, 9, 9, H, W], a view
    out = windows[np.arange(n), :, shifts[0], shifts[1]]
    out[mirrored] = out[mirrored, :, :, ::-1]
    return out


def _batch(data: Dataset, part: Part) -> Batch:
    mean, std = (torch.tensor(x, dtype=torch.float32).view(-1, 1, 1) for x in (data.mean, data.std))
    return torch.from_numpy(part.images).float().sub_(mean).div_(std), torch.from_numpy(part.labels)


def _check(batch_size: int, indices: NDArray, part: Part) -> None:
    if batch_size < 1:
        raise ValueError(f"expected a batch size of at least 1, got {batch_size}")
    if indices.ndim != 1 or indices.dtype.kind not in "iu":
        raise ValueError(f"expected indices as a list of integers, got {indices.dtype} {indices.shape}")
    if len(indices) and not (0 <= indices.min() and indices.max() < len(part)):
        given = f"{indices.min()} to {indices.max()}"
        raise ValueError(f"expected indices from 0 to {len(part) - 1}, got {given}")
