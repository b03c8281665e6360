"""Batches of one client: float32 [n, ...], (x - mean) / std where the set has these, and int64 labels.

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

from fl.data.dataset import Dataset, Part, X

PAD = 4
Batch = tuple[Tensor, Tensor]


def batches(
    data: Dataset,
    indices: NDArray[np.integer],
    batch_size: int,
    rng: np.random.Generator,
) -> Iterator[Batch]:
    """One epoch over the training samples `indices`, the last small batch included.

    Images are cropped and mirrored where the data set says so. One random batch: next(batches(...)).

    >>> import fl, numpy as np
    >>> data = fl.data.load("digits")
    >>> [len(y) for x, y in fl.data.batches(data, np.arange(100), 40, np.random.default_rng(0))]
    [40, 40, 20]
    """
    _check(batch_size, indices, data.train)
    order = rng.permutation(indices)
    shifts, mirrored = rng.integers(0, 2 * PAD + 1, (2, len(order))), rng.random(len(order)) < 0.5
    return _train(data, order, shifts, mirrored, batch_size)


def evaluation_batches(data: Dataset, indices: NDArray[np.integer], batch_size: int) -> Iterator[Batch]:
    """The test samples `indices` in their order, as they are.

    >>> import fl, numpy as np
    >>> data = fl.data.load("digits")
    >>> [tuple(x.shape) for x, y in fl.data.evaluation_batches(data, np.arange(3), 2)]
    [(2, 1, 8, 8), (1, 1, 8, 8)]
    """
    _check(batch_size, indices, data.test)
    return (
        _batch(data, data.test.take(indices[start : start + batch_size]))
        for start in range(0, len(indices), batch_size)
    )


def _train(
    data: Dataset, order: NDArray, shifts: NDArray, mirrored: NDArray, batch_size: int
) -> Iterator[Batch]:
    for start in range(0, len(order), batch_size):
        now = slice(start, start + batch_size)
        part = data.train.take(order[now])
        if data.augment:
            part = Part(crop_and_mirror(part.x, shifts[:, now], mirrored[now]), part.labels)
        yield _batch(data, part)


def crop_and_mirror(images: X, shifts: NDArray, mirrored: NDArray) -> X:
    """Image i, padded, from row shifts[0, i] and column shifts[1, i] on, and mirrored where mirrored[i]."""
    n, channels, height, width = images.shape
    padded = np.zeros((n, channels, height + 2 * PAD, width + 2 * PAD), dtype=images.dtype)  # np.pad is slow
    padded[:, :, PAD:-PAD, PAD:-PAD] = images
    windows = sliding_window_view(padded, (height, width), axis=(2, 3))  # [n, C, 9, 9, H, W], a view
    out = windows[np.arange(n), :, shifts[0], shifts[1]]
    out[mirrored] = out[mirrored, :, :, ::-1]
    return out


def _batch(data: Dataset, part: Part) -> Batch:
    x, labels = torch.from_numpy(part.x).float(), torch.from_numpy(part.labels)
    if not data.mean:
        return x, labels
    shape = (-1, 1, 1) if data.is_image else (-1,)
    mean, std = (torch.tensor(values, dtype=torch.float32).view(shape) for values in (data.mean, data.std))
    return x.sub_(mean).div_(std), labels


def _check(batch_size: int, indices: NDArray, part: Part) -> None:
    if batch_size < 1:
        raise ValueError(f"expected a batch size of at least 1, got {batch_size}")
    if indices.ndim != 1 or indices.dtype.kind not in "iu":
        raise ValueError(f"expected indices as a list of integers, got {indices.dtype} {indices.shape}")
    if len(indices) and not (0 <= indices.min() and indices.max() < len(part)):
        given = f"{indices.min()} to {indices.max()}"
        raise ValueError(f"expected indices from 0 to {len(part) - 1}, got {given}")
