"""Dataset: labelled images as a training and a test part, kept as bytes until a batch is made from them.

images [n, channels, height, width] uint8, labels [n] int64 from 0 to num_classes - 1; mean and std of every
channel of the training part, in the unit of the bytes. A batch holds (x - mean) / std.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_CHUNK = 4096  # images; int64 copies of more would not fit a cache, nor small memories


@dataclass(frozen=True, eq=False)
class Part:
    """Images and their labels. The images may be memory-mapped."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, index: NDArray[np.integer]) -> "Part":
        """The samples `index`, copied."""
        return Part(self.images[index], self.labels[index])


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """One data set. `augment`: random crops and flips in training (batches.py)."""

    name: str
    train: Part
    test: Part
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augment: bool = False

    def __post_init__(self) -> None:
        for what, part in (("train", self.train), ("test", self.test)):
            _check(f"{self.name} {what}", part, self.num_classes)
        shapes = {"train": self.train.images.shape[1:], "test": self.test.images.shape[1:]}
        if shapes["train"] != shapes["test"]:
            raise ValueError(f"{self.name}: expected images of one shape, got {shapes}")
        channels = self.shape[0]
        if not len(self.mean) == len(self.std) == channels or not all(s > 0 for s in self.std):
            given = f"mean={self.mean}, std={self.std}"
            raise ValueError(f"{self.name}: expected {channels} means and positive stds, got {given}")

    @property
    def shape(self) -> tuple[int, int, int]:
        """(channels, height, width) of an image."""
        channels, height, width = self.train.images.shape[1:]
        return channels, height, width

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    def __repr__(self) -> str:
        size = f"{len(self.train):,} + {len(self.test):,} images {self.shape}"
        return f"Dataset({self.name}, {size}, {self.num_classes} classes)"


def channel_statistics(images: NDArray[np.uint8]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation a channel, exactly: the sums are integers. A constant channel has std 1."""
    channels = images.shape[1]
    total, squares = [0] * channels, [0] * channels
    for start in range(0, len(images), _CHUNK):
        for c in range(channels):
            counts = np.bincount(images[start : start + _CHUNK, c].reshape(-1), minlength=256)
            total[c] += int(counts @ np.arange(256))
            squares[c] += int(counts @ np.arange(256) ** 2)
    n = images.size // max(channels, 1)
    mean = tuple(s / n for s in total)
    variance = [(n * q - s * s) / (n * n) for s, q in zip(total, squares, strict=True)]
    return mean, tuple(v**0.5 if v > 0 else 1.0 for v in variance)


def _check(what: str, part: Part, num_classes: int) -> None:
    images, labels = part.images, part.labels
    if images.dtype != np.uint8 or images.ndim != 4:
        wanted = "uint8 images [n, channels, height, width]"
        raise ValueError(f"{what}: expected {wanted}, got {images.dtype} {images.shape}")
    if labels.dtype != np.int64 or labels.shape != images.shape[:1]:
        wanted = f"{len(images)} int64 labels, one per image"
        raise ValueError(f"{what}: expected {wanted}, got {labels.dtype} {labels.shape}")
    if len(labels) == 0 or images.size == 0:
        raise ValueError(f"{what}: expected at least one image of at least one pixel, got {images.shape}")
    lowest, highest = labels.min(), labels.max()
    if lowest < 0 or highest >= num_classes:
        raise ValueError(f"{what}: expected labels from 0 to {num_classes - 1}, got {lowest} to {highest}")
