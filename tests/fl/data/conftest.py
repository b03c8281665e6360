"""Small data sets in memory, and real ones where SPARSE_DATA has them."""

import os

import numpy as np
import pytest

from fl.data import Dataset, Part, load


@pytest.fixture
def real():
    """load(), or a skipped test: real data are never fetched, and looked for in SPARSE_DATA alone."""

    def load_or_skip(name, **options):
        root = os.environ.get("SPARSE_DATA")
        if not root:
            pytest.skip("no data: SPARSE_DATA is not set")
        try:
            return load(name, root, **options)
        except FileNotFoundError:
            pytest.skip(f"no data: no {name} in SPARSE_DATA")

    return load_or_skip


@pytest.fixture
def labelled():
    """A data set with these labels; its images are one pixel, and cost no memory."""

    def make(train, test, num_classes=None):
        train, test = (np.asarray(y, dtype=np.int64) for y in (train, test))
        classes = num_classes or int(max(train.max(), test.max())) + 1
        pixel = np.zeros((1, 1, 1, 1), dtype=np.uint8)
        parts = [Part(np.broadcast_to(pixel, (len(y), 1, 1, 1)), y) for y in (train, test)]
        return Dataset("labels", *parts, tuple(map(str, range(classes))), (0.0,), (1.0,))

    return make


@pytest.fixture
def pictures():
    """A data set of random images of a shape; class of image i: i modulo 3."""

    def make(n=40, shape=(3, 32, 32), augment=True):
        rng = np.random.default_rng(0)
        parts = [
            Part(rng.integers(0, 256, (m, *shape), dtype=np.uint8), np.arange(m) % 3) for m in (n, n // 2)
        ]
        mean = tuple(100.0 + c for c in range(shape[0]))
        std = tuple(50.0 + c for c in range(shape[0]))
        return Dataset("pictures", *parts, ("a", "b", "c"), mean, std, augment)

    return make
