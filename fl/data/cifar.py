"""CIFAR-10 and CIFAR-100, the official binary versions.

    cifar-10-batches-bin   data_batch_1..5.bin, test_batch.bin   record: label, 3072 pixels
    cifar-100-binary       train.bin, test.bin                   record: coarse and fine label, 3072 pixels

Pixels are the red plane, then green, then blue, each 32 x 32 by rows: an image is [3, 32, 32] as it lies. Of
CIFAR-100's two labels the fine one counts. A part in one file is memory-mapped, five are read and joined.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fl.data.dataset import Dataset, Part

_PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class Binary:
    """What the files are called and hold; mean and std are those of all training images."""

    name: str
    folder: str
    archive: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    records: tuple[int, int]  # in a training and in a test file
    label_bytes: int
    num_classes: int
    names: str  # file of class names
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def missing(self, root: Path) -> list[Path]:
        return [
            path for name in (*self.train, *self.test) if not (path := root / self.folder / name).is_file()
        ]


CIFAR10 = Binary(
    name="cifar10",
    folder="cifar-10-batches-bin",
    archive="cifar-10-binary.tar.gz",
    train=tuple(f"data_batch_{i}.bin" for i in range(1, 6)),
    test=("test_batch.bin",),
    records=(10_000, 10_000),
    label_bytes=1,
    num_classes=10,
    names="batches.meta.txt",
    mean=(125.306918, 122.950394, 113.865383),
    std=(62.993219, 62.088708, 66.704900),
)
CIFAR100 = Binary(
    name="cifar100",
    folder="cifar-100-binary",
    archive="cifar-100-binary.tar.gz",
    train=("train.bin",),
    test=("test.bin",),
    records=(50_000, 10_000),
    label_bytes=2,
    num_classes=100,
    names="fine_label_names.txt",
    mean=(129.304166, 124.069962, 112.434049),
    std=(68.170244, 65.391807, 70.418375),
)


def read(binary: Binary, root: Path) -> Dataset:
    folder = root / binary.folder
    train = [_file(folder / name, binary, binary.records[0]) for name in binary.train]
    test = [_file(folder / name, binary, binary.records[1]) for name in binary.test]
    return Dataset(
        name=binary.name,
        train=_join(train),
        test=_join(test),
        classes=_class_names(folder / binary.names, binary.num_classes),
        mean=binary.mean,
        std=binary.std,
        augment=True,
    )


def _file(path: Path, binary: Binary, records: int) -> Part:
    width = binary.label_bytes + _PIXELS
    size = path.stat().st_size
    if size != records * width:
        wanted = f"{records * width:,} bytes ({records:,} records of {width})"
        raise ValueError(f"{path}: expected {wanted}, got {size:,}: incomplete or not the binary version?")
    rows = np.memmap(path, dtype=np.uint8, mode="r", shape=(records, width))
    labels = rows[:, binary.label_bytes - 1].astype(np.int64)
    if labels.max() >= binary.num_classes:
        where = int(labels.argmax())
        given = f"{labels[where]} in record {where}"
        raise ValueError(f"{path}: expected labels from 0 to {binary.num_classes - 1}, got {given}")
    return Part(rows[:, binary.label_bytes :].reshape(-1, 3, 32, 32), labels)


def _join(parts: list[Part]) -> Part:
    if len(parts) == 1:
        return parts[0]
    images: NDArray[np.uint8] = np.concatenate([part.x for part in parts])
    return Part(images, np.concatenate([part.labels for part in parts]))


def _class_names(path: Path, num_classes: int) -> tuple[str, ...]:
    """The names in the file that comes with the data; plain numbers without it."""
    try:
        names = (
            tuple(path.read_text("utf-8").split()) if path.is_file() else tuple(map(str, range(num_classes)))
        )
    except UnicodeDecodeError as wrong:
        raise ValueError(f"{path}: expected {num_classes} class names, got no text") from wrong
    if len(names) != num_classes:
        raise ValueError(f"{path}: expected {num_classes} class names, got {len(names)}")
    return names
