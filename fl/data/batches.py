"""Batches of one client: float32 [n, ...], (x - mean) / std where the set has these, and int64 labels.

In training the order is random, and where the set says so (CIFAR) every image is cropped at random out of
itself with 4 black pixels around it, and mirrored with probability 1/2. All of an epoch's randomness is drawn
when it starts: neither the batch size nor how far somebody reads changes it.

Batches of images are [n, C, H, W]. Their memory is in that order too, or [C, H, W, n] (`batch_last`), which
sparse layers read without a copy. The values are the same bits.
"""

from collections.abc import Iterable, Iterator

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
    *,
    batch_last: bool = False,
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
    parts = _parts(data.train, order, batch_size)
    if data.augment:
        parts = _changed(parts, shifts, mirrored)
    return _normalised(parts, data, batch_last)


def evaluation_batches(
    data: Dataset, indices: NDArray[np.integer], batch_size: int, *, batch_last: bool = False
) -> Iterator[Batch]:
    """The test samples `indices` in their order, as they are.

    >>> import fl, numpy as np
    >>> data = fl.data.load("digits")
    >>> [tuple(x.shape) for x, y in fl.data.evaluation_batches(data, np.arange(3), 2)]
    [(2, 1, 8, 8), (1, 1, 8, 8)]
    """
    _check(batch_size, indices, data.test)
    return _normalised(_parts(data.test, indices, batch_size), data, batch_last)


def _parts(part: Part, indices: NDArray[np.integer], batch_size: int) -> Iterator[Part]:
    for start in range(0, len(indices), batch_size):
        yield part.take(indices[start : start + batch_size])


def _changed(parts: Iterable[Part], shifts: NDArray, mirrored: NDArray) -> Iterator[Part]:
    """Every part cropped and mirrored; `shifts` and `mirrored` are of all samples in their order."""
    seen = 0
    for part in parts:
        now = slice(seen, seen + len(part))
        yield Part(crop_and_mirror(part.x, shifts[:, now], mirrored[now]), part.labels)
        seen = now.stop


def crop_and_mirror(images: X, shifts: NDArray, mirrored: NDArray) -> X:
    """Image i, padded, from row shifts[0, i] and column shifts[1, i] on, and mirrored where mirrored[i]."""
    n, channels, height, width = images.shape
    padded = np.zeros((n, channels, height + 2 * PAD, width + 2 * PAD), dtype=images.dtype)  # np.pad is slow
    padded[:, :, PAD:-PAD, PAD:-PAD] = images
    windows = sliding_window_view(padded, (height, width), axis=(2, 3))  # [n, C, 9, 9, H, W], a view
    out = windows[np.arange(n), :, shifts[0], shifts[1]]
    out[mirrored] = out[mirrored, :, :, ::-1]
    return out


def _normalised(parts: Iterable[Part], data: Dataset, batch_last: bool) -> Iterator[Batch]:
    turned = batch_last and data.is_image
    shape = (-1, 1, 1, 1) if turned else (-1, 1, 1) if data.is_image else (-1,)
    mean, std = (torch.tensor(values, dtype=torch.float32).view(shape) for values in (data.mean, data.std))
    for part in parts:
        samples = torch.from_numpy(part.x)
        if turned:
            samples = samples.permute(1, 2, 3, 0)
        x = samples.to(torch.float32, memory_format=torch.contiguous_format)
        if data.mean:
            x.sub_(mean).div_(std)
        yield x.permute(3, 0, 1, 2) if turned else x, torch.from_numpy(part.labels)


def _check(batch_size: int, indices: NDArray, part: Part) -> None:
    if batch_size < 1:
        raise ValueError(f"expected a batch size of at least 1, got {batch_size}")
    if indices.ndim != 1 or indices.dtype.kind not in "iu":
        raise ValueError(f"expected indices as a list of integers, got {indices.dtype} {indices.shape}")
    if len(indices) and not (0 <= indices.min() and indices.max() < len(part)):
        given = f"{indices.min()} to {indices.max()}"
        raise ValueError(f"expected indices from 0 to {len(part) - 1}, got {given}")
