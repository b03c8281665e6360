"""Data sets refuse what a network could not be trained on; channel statistics against float64."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fl.data import Dataset, Part
from fl.data.dataset import channel_statistics


def part(n=4, shape=(3, 2, 2), highest=1):
    images = np.arange(n * np.prod(shape)).reshape(n, *shape).astype(np.uint8)
    return Part(images, np.arange(n) % (highest + 1))


def dataset(train=None, test=None, mean=(0.0,) * 3, std=(1.0,) * 3):
    train, test = (part() if given is None else given for given in (train, test))
    return Dataset("some", train, test, ("no", "yes"), mean, std)


def test_what_it_says_of_itself():
    data = dataset(train=part(2000), test=part(3))
    assert data.shape == (3, 2, 2) and data.num_classes == 2 and not data.augment
    assert repr(data) == "Dataset(some, 2,000 + 3 images (3, 2, 2), 2 classes)"


def test_take_copies():
    whole = part()
    taken = whole.take(np.array([2, 0]))
    assert len(taken) == 2 and taken.labels.tolist() == [0, 0]
    np.testing.assert_array_equal(taken.images, whole.images[[2, 0]])
    taken.images[:] = 7
    assert whole.images[0, 0, 0, 0] == 0


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"train": Part(np.zeros((4, 3, 2, 2), np.float32), np.zeros(4, np.int64))}, "uint8 .* got float32"),
        ({"train": Part(np.zeros((4, 2, 2), np.uint8), np.zeros(4, np.int64))}, r"got uint8 \(4, 2, 2\)"),
        ({"test": Part(np.zeros((4, 3, 2, 2), np.uint8), np.zeros(3, np.int64))}, r"4 int64 labels.*\(3,\)"),
        ({"test": Part(np.zeros((4, 3, 2, 2), np.uint8), np.zeros(4, np.uint8))}, "4 int64 labels.*uint8"),
        ({"test": part(n=0)}, "some test: expected at least one image"),
        ({"train": part(highest=2)}, "labels from 0 to 1, got 0 to 2"),
        ({"train": Part(part().images, np.full(4, -1))}, "labels from 0 to 1, got -1 to -1"),
        ({"test": part(shape=(3, 2, 4))}, r"one shape, got .*\(3, 2, 2\).*\(3, 2, 4\)"),
        ({"mean": (0.0,)}, "3 means"),
        ({"std": (1.0, 0.0, 1.0)}, "positive stds"),
        ({"std": (1.0, float("nan"), 1.0)}, "positive stds"),
    ],
)
def test_refusals(wrong, message):
    with pytest.raises(ValueError, match=message):
        dataset(**wrong)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 9000), st.integers(1, 3), st.integers(0, 2**32))
def test_statistics_are_those_of_float64(n, channels, seed):
    """9,000 images are more than are summed at a time."""
    images = np.random.default_rng(seed).integers(0, 256, (n, channels, 2, 1), dtype=np.uint8)
    mean, std = channel_statistics(images)
    np.testing.assert_allclose(mean, images.mean(axis=(0, 2, 3), dtype=np.float64), rtol=1e-12)
    expected = images.astype(np.float64).std(axis=(0, 2, 3))
    np.testing.assert_allclose(std, np.where(expected > 0, expected, 1.0), rtol=1e-9)


def test_a_constant_channel_can_be_divided_by():
    images = np.zeros((5, 2, 3, 3), dtype=np.uint8)
    images[:, 0] = 200
    assert channel_statistics(images) == ((200.0, 0.0), (1.0, 1.0))
