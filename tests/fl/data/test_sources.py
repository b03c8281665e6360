"""Data sets out of torch Datasets, Hugging Face splits and pictures, known by what they can do."""

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset, TensorDataset

from fl.data import as_dataset, from_arrays, from_hf, from_torch

X = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
Y = np.arange(20) % 2


class Items(list):
    """A map-style data set of these items."""


class Split:
    """What a split of Hugging Face's `datasets` can do: columns by name, rows by number."""

    def __init__(self, names=None, **columns):
        self.columns, self.column_names = columns, list(columns)
        self.features = {name: object() for name in columns}
        if names is not None:
            self.features["label"] = type("ClassLabel", (), {"names": names})()

    def __len__(self):
        return len(next(iter(self.columns.values())))

    def __getitem__(self, key):
        if isinstance(key, str):
            return self.columns[key]
        return {name: column[key] for name, column in self.columns.items()}


class Picture:
    """What an image of PIL can do: it is an array, has a mode, and becomes one of another."""

    def __init__(self, pixels, mode):
        self.pixels, self.mode = pixels, mode

    def __array__(self, dtype=None, copy=None):
        return self.pixels

    def convert(self, mode):
        return Picture(np.stack([self.pixels, 255 - self.pixels, self.pixels], -1), mode)


def pictures(n=20, mode="RGB"):
    rng = np.random.default_rng(0)
    shape = (6, 5, 3) if mode == "RGB" else (6, 5)
    return [Picture(rng.integers(0, 256, shape, dtype=np.uint8), mode) for _ in range(n)]


def same(one, other):
    for a, b in ((one.train, other.train), (one.test, other.test)):
        np.testing.assert_array_equal(a.x, b.x)
        np.testing.assert_array_equal(a.labels, b.labels)
    assert one.classes == other.classes
    return True


def test_a_torch_dataset_is_its_arrays():
    given = TensorDataset(torch.tensor(X), torch.tensor(Y))
    assert same(from_torch(given, given), from_arrays(X, Y, X, Y))
    assert from_torch(given, name="mine").name == "mine"


def test_pictures_of_a_torch_dataset_and_its_classes():
    given = Items(zip(pictures(), Y.tolist(), strict=True))
    given.classes = ["cat", "dog"]
    data = from_torch(given, given)
    assert data.shape == (3, 6, 5) and data.classes == ("cat", "dog") and data.train.x.dtype == np.uint8
    np.testing.assert_array_equal(data.train.x[7].transpose(1, 2, 0), np.asarray(given[7][0]))


def test_pictures_with_a_palette_become_rgb():
    given = Items((picture, 0) for picture in pictures(mode="P"))
    data = from_torch(given, given)
    np.testing.assert_array_equal(data.train.x[3].transpose(1, 2, 0), np.asarray(given[3][0].convert("RGB")))


def test_a_split_by_its_usual_columns():
    given = Split(["no", "yes"], id=list(range(20)), img=pictures(mode="L"), label=Y.tolist())
    data = from_hf(given, given)
    assert data.shape == (1, 6, 5) and data.classes == ("no", "yes")
    np.testing.assert_array_equal(data.train.x[4, 0], np.asarray(given[4]["img"]))


def test_a_split_by_named_columns_with_groups():
    given = Split(a=X.tolist(), b=Y.tolist(), user=[f"u{i // 5}" for i in range(20)])
    data = from_hf(given, x="a", y="b", groups="user", natural=True)
    assert data.shape == (3,) and set(data.test.groups) == set(data.train.groups) == {"u0", "u1", "u2", "u3"}


def test_anything(tmp_path):
    arrays = from_arrays(X, Y)
    np.savez(tmp_path / "some.npz", x=X, y=Y)
    for given in (
        (X, Y),
        [torch.tensor(X), torch.tensor(Y)],
        {"x": X, "y": Y},
        TensorDataset(torch.tensor(X), torch.tensor(Y)),
        Split(features=X.tolist(), label=Y.tolist()),
        tmp_path / "some.npz",
        str(tmp_path / "some.npz"),
    ):
        assert same(as_dataset(given), arrays)
    assert as_dataset(arrays) is arrays
    tensors = TensorDataset(torch.tensor(X), torch.tensor(Y))
    split = Split(x=list(X), y=Y.tolist())
    for given in ((X, Y, X, Y), {"train": split, "test": split}, {"train": tensors, "test": tensors}):
        assert same(as_dataset(given), from_arrays(X, Y, X, Y))


def test_natural_groups_reach_the_split():
    data = as_dataset({"x": X, "y": Y, "groups": Y}, natural=True)
    assert set(data.train.groups) == set(data.test.groups) == {0, 1}


class Stream(IterableDataset):
    def __iter__(self):
        yield 1, 2


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((X, Y, X), r"expected \(x, y\) or \(x, y, x_test, y_test\), got 3 arrays"),
        (X, "expected arrays .*, got ndarray"),
        (7, "got int"),
        (Stream(), "map-style torch Dataset .*, got Stream"),
        ({"x": X}, r"keys x and y, or train \(and test\), got \['x'\]"),
        ({"x": X, "y": Y, "labels": Y}, r"got \['labels'\]"),
        ({"train": Stream()}, "dataset: expected a map-style data set.*, got Stream"),
        (set("ab"), "got set"),
        (
            Split(text=["a"] * 20, label=Y),
            r"out of \['image', .*\] for the samples, x, got \['text', 'label'\]",
        ),
        (Split(x=X), "for the labels, y, got"),
        (TensorDataset(torch.tensor(X)), r"items \(x, y\), got tuple as item 0"),
        (
            TensorDataset(torch.tensor(X), torch.tensor(X)),
            r"one label per sample, got float32 \(3,\) of sample 0",
        ),
        (TensorDataset(torch.tensor(X), torch.tensor(X[:, 0])), r"20 integer labels, .*, got float32"),
        (
            {"train": Items([(X[0], 0), (X[0, :2], 1)])},
            r"float32 \(3,\) as the first, got float32 \(2,\) as 1",
        ),
        (
            {"train": Items([([1, 2], 0), ([1.5, 2], 1)])},
            r"int64 \(2,\) as the first, got float32 \(2,\) as 1",
        ),
        ({"train": Items()}, "at least one sample"),
    ],
)
def test_refusals(given, message):
    with pytest.raises(ValueError, match=message):
        as_dataset(given)


def test_a_column_that_is_not_there_is_named():
    given = Split(x=X, label=Y)
    for options in ({"x": "a"}, {"y": "a"}, {"groups": "a"}):
        with pytest.raises(ValueError, match=r"expected a column 'a' for the .*, got \['x', 'label'\]"):
            from_hf(given, **options)


def test_samples_that_do_not_fit_into_memory_are_refused(monkeypatch):
    monkeypatch.setattr("fl.data.memory.available", lambda: 100)
    with pytest.raises(ValueError, match=r"expected 20 samples \(3,\), twice, to fit into memory"):
        from_torch(TensorDataset(torch.tensor(X), torch.tensor(Y)))
