"""Dataset: labelled samples as a training and a test part, kept as they are until a batch is made from them.

x [n, ...]: bytes (uint8) or numbers (float32) of any shape; images are [n, channels, height, width].
labels [n]: int64 from 0 to num_classes - 1. groups [n]: who a sample comes from, where that is known.
mean and std are of the training part, and a batch holds (x - mean) / std: one of each per channel of images,
else one for everything or one per entry of the last axis. Without them (numbers, as a rule) x stays as it is.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

X = NDArray[np.uint8] | NDArray[np.float32]
Values = tuple[float, ...]
_CHUNK = 4096  # samples; int64 copies of more would not fit a cache, nor small memories


@dataclass(frozen=True, eq=False)
class Part:
    """Samples, their labels, and the group of each where there are groups. x may be memory-mapped."""

    x: X
    labels: NDArray[np.int64]
    groups: NDArray | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, index: NDArray[np.integer]) -> "Part":
        """The samples `index`, copied."""
        groups = None if self.groups is None else self.groups[index]
        return Part(self.x[index], self.labels[index], groups)


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """One data set. `augment`: random crops and flips of images in training (batches.py).

    >>> import fl
    >>> data = fl.data.load("digits")
    >>> data.shape, data.num_classes, len(data.train) + len(data.test)
    ((1, 8, 8), 10, 1797)
    """

    name: str
    train: Part
    test: Part
    classes: tuple[str, ...]
    mean: Values
    std: Values
    augment: bool = False

    def __post_init__(self) -> None:
        for what, part in (("train", self.train), ("test", self.test)):
            _check(f"{self.name} {what}", part, self.num_classes)
        shapes = {"train": self.train.x.shape[1:], "test": self.test.x.shape[1:]}
        if shapes["train"] != shapes["test"]:
            raise ValueError(f"{self.name}: expected samples of one shape, got {shapes}")
        if self.train.x.dtype != self.test.x.dtype:
            given = f"{self.train.x.dtype} and {self.test.x.dtype}"
            raise ValueError(f"{self.name}: expected both parts in one type, got {given}")
        self._check_statistics()
        if self.augment and not self.is_image:
            raise ValueError(f"{self.name}: expected images to crop and mirror, got samples {self.shape}")

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a sample: (channels, height, width) of an image, (features,) of a vector."""
        return tuple(self.train.x.shape[1:])

    @property
    def is_image(self) -> bool:
        """Whether samples are [channels, height, width]."""
        return len(self.shape) == 3

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    def __repr__(self) -> str:
        what = "images" if self.is_image else "samples"
        size = f"{len(self.train):,} + {len(self.test):,} {what} {self.shape}"
        return f"Dataset({self.name}, {size}, {self.num_classes} classes)"

    def _check_statistics(self) -> None:
        lengths = {self.shape[0]} if self.is_image else {1, self.shape[-1]}
        if self.train.x.dtype == np.float32:
            lengths |= {0}
        if (
            len(self.mean) not in lengths
            or len(self.std) != len(self.mean)
            or not all(s > 0 for s in self.std)
        ):
            wanted = " or ".join(map(str, sorted(lengths)))
            given = f"mean={self.mean}, std={self.std}"
            raise ValueError(f"{self.name}: expected {wanted} means and positive stds, got {given}")


def standardised(data: Dataset) -> Dataset:
    """`data`, whose batches hold (x - mean) / std of the training part, floats too. Arrays are not copied.

    >>> import numpy as np
    >>> from fl.data import from_arrays
    >>> x = np.array([[1, 10], [3, 30]] * 5, np.float32)
    >>> data = standardised(from_arrays(x, np.zeros(10, int), x, np.zeros(10, int)))
    >>> data.mean, data.std
    ((2.0, 20.0), (1.0, 10.0))
    """
    mean, std = statistics(data.train.x)
    return replace(data, mean=mean, std=std)


def statistics(x: X) -> tuple[Values, Values]:
    """Mean and standard deviation that batches of x are normalised with; 1 in place of a deviation of 0.

    Bytes: per channel of images [n, C, H, W], else one of everything. Numbers: per channel of images, else
    per entry of the last axis.
    """
    if x.dtype == np.uint8:
        return _of_bytes(x if x.ndim == 4 else x.reshape(len(x), 1, -1))
    return _of_numbers(np.moveaxis(x, 1, -1) if x.ndim == 4 else x)


def _of_bytes(x: NDArray) -> tuple[Values, Values]:
    """Per entry of the second axis, exactly: the sums are integers."""
    channels = x.shape[1]
    total, squares = [0] * channels, [0] * channels
    for start in range(0, len(x), _CHUNK):
        for c in range(channels):
            counts = np.bincount(x[start : start + _CHUNK, c].reshape(-1), minlength=256)
            total[c] += int(counts @ np.arange(256))
            squares[c] += int(counts @ np.arange(256) ** 2)
    n = x.size // max(channels, 1)
    mean = tuple(s / n for s in total)
    variance = [(n * q - s * s) / (n * n) for s, q in zip(total, squares, strict=True)]
    return mean, tuple(v**0.5 if v > 0 else 1.0 for v in variance)


def _of_numbers(x: NDArray) -> tuple[Values, Values]:
    """Per entry of the last axis, summed in float64."""
    chunks = [slice(start, start + _CHUNK) for start in range(0, len(x), _CHUNK)]
    axes, n = tuple(range(x.ndim - 1)), x.size // x.shape[-1]
    mean = sum(x[now].sum(axes, dtype=np.float64) for now in chunks) / n
    variance = sum(np.square(x[now] - mean).sum(axes) for now in chunks) / n
    return tuple(mean.tolist()), tuple(v**0.5 if v > 0 else 1.0 for v in variance.tolist())


def _check(what: str, part: Part, num_classes: int) -> None:
    x, labels = part.x, part.labels
    if x.dtype not in (np.uint8, np.float32) or x.ndim < 2:
        wanted = "uint8 or float32 samples [n, ...]"
        raise ValueError(f"{what}: expected {wanted}, got {x.dtype} {x.shape}")
    if labels.dtype != np.int64 or labels.shape != x.shape[:1]:
        wanted = f"{len(x)} int64 labels, one per sample"
        raise ValueError(f"{what}: expected {wanted}, got {labels.dtype} {labels.shape}")
    if len(labels) == 0 or x.size == 0:
        raise ValueError(f"{what}: expected at least one sample of at least one value, got {x.shape}")
    lowest, highest = labels.min(), labels.max()
    if lowest < 0 or highest >= num_classes:
        raise ValueError(f"{what}: expected labels from 0 to {num_classes - 1}, got {lowest} to {highest}")
    if part.groups is not None and part.groups.shape != labels.shape:
        raise ValueError(f"{what}: expected one group per sample, got {part.groups.shape} for {labels.shape}")
    check_finite(what, x)


def check_finite(what: str, x: X) -> None:
    """ValueError: x has a number that is none, or is infinite. It names the first such sample."""
    if x.dtype != np.float32:
        return
    for start in range(0, len(x), _CHUNK):
        finite = np.isfinite(x[start : start + _CHUNK])
        if not finite.all():
            first = start + int(np.argwhere(~finite)[0, 0])
            raise ValueError(f"{what}: expected finite numbers, got {_wrong(x[first])} in sample {first}")


def _wrong(sample: NDArray) -> str:
    return "not a number" if np.isnan(sample).any() else "an infinite one"
