"""Data sets refuse what a network could not be trained on; channel statistics against float64."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fl.data import Dataset, Part
from fl.data.dataset import statistics


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
    np.testing.assert_array_equal(taken.x, whole.x[[2, 0]])
    taken.x[:] = 7
    assert whole.x[0, 0, 0, 0] == 0


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"train": Part(np.zeros((4, 3, 2, 2), np.float64), np.zeros(4, np.int64))}, "uint8 .* got float64"),
        ({"train": Part(np.zeros((4, 3, 2, 2), np.float32), np.zeros(4, np.int64))}, "float32 and uint8"),
        ({"train": Part(np.zeros((4, 2, 2), np.uint8), np.zeros(4, np.int64))}, r"one shape, got .*\(2, 2\)"),
        (
            {"train": Part(np.zeros(4, np.uint8), np.zeros(4, np.int64))},
            r"samples \[n, ...\], got uint8 \(4,\)",
        ),
        (
            {"train": Part(part().x, part().labels, np.zeros(3))},
            r"one group per sample, got \(3,\) for \(4,\)",
        ),
        ({"test": Part(np.zeros((4, 3, 2, 2), np.uint8), np.zeros(3, np.int64))}, r"4 int64 labels.*\(3,\)"),
        ({"test": Part(np.zeros((4, 3, 2, 2), np.uint8), np.zeros(4, np.uint8))}, "4 int64 labels.*uint8"),
        ({"test": part(n=0)}, "some test: expected at least one sample"),
        ({"train": part(highest=2)}, "labels from 0 to 1, got 0 to 2"),
        ({"train": Part(part().x, np.full(4, -1))}, "labels from 0 to 1, got -1 to -1"),
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
    mean, std = statistics(images)
    np.testing.assert_allclose(mean, images.mean(axis=(0, 2, 3), dtype=np.float64), rtol=1e-12)
    expected = images.astype(np.float64).std(axis=(0, 2, 3))
    np.testing.assert_allclose(std, np.where(expected > 0, expected, 1.0), rtol=1e-9)


def test_a_constant_channel_can_be_divided_by():
    images = np.zeros((5, 2, 3, 3), dtype=np.uint8)
    images[:, 0] = 200
    assert statistics(images) == ((200.0, 0.0), (1.0, 1.0))


def numbers(x, **more):
    return Dataset(
        "some", Part(x, np.zeros(len(x), np.int64)), Part(x, np.zeros(len(x), np.int64)), ("a",), **more
    )


@pytest.mark.parametrize("shape", [(5,), (7, 2), (3, 4, 4), (2, 3, 4, 5)])
def test_numbers_of_any_shape(shape):
    data = numbers(np.ones((6, *shape), np.float32), mean=(), std=())
    assert data.shape == shape and data.is_image == (len(shape) == 3)
    assert ("images" if len(shape) == 3 else "samples") in repr(data)


def test_bytes_need_a_mean():
    with pytest.raises(ValueError, match="expected 1 or 5 means"):
        numbers(np.ones((6, 5), np.uint8), mean=(), std=())


@pytest.mark.parametrize(("value", "words"), [(np.nan, "not a number"), (np.inf, "an infinite one")])
def test_numbers_that_are_none_are_refused_with_the_sample(value, words):
    x = np.zeros((5000, 3), np.float32)
    x[4500, 1] = value
    with pytest.raises(ValueError, match=f"some train: expected finite numbers, got {words} in sample 4500"):
        numbers(x, mean=(), std=())


def test_vectors_are_not_cropped():
    with pytest.raises(ValueError, match=r"expected images to crop and mirror, got samples \(3,\)"):
        numbers(np.zeros((5, 3), np.float32), mean=(), std=(), augment=True)


@pytest.mark.parametrize(
    ("shape", "axes"),
    [((5000, 3), 0), ((50, 4, 3), (0, 1)), ((50, 3, 4, 5), (0, 2, 3)), ((9, 2, 2, 2, 3), (0, 1, 2, 3))],
)
def test_statistics_of_numbers(shape, axes):
    x = np.random.default_rng(0).normal(3, 2, shape).astype(np.float32)
    mean, std = statistics(x)
    np.testing.assert_allclose(mean, x.mean(axes, dtype=np.float64), rtol=1e-9)
    np.testing.assert_allclose(std, x.std(axes, dtype=np.float64), rtol=1e-6)


def test_bytes_that_are_no_images_have_one_mean():
    x = np.random.default_rng(0).integers(0, 256, (50, 7), dtype=np.uint8)
    assert statistics(x) == (pytest.approx((x.mean(),)), pytest.approx((x.std(),)))
