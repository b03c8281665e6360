"""Where data sets are looked for, what is said when they are not there, the shipped one, and resizing."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fl.data import adjusted, from_arrays, load
from fl.data.sets import data_root


def test_digits_come_with_the_package(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SPARSE_DATA", raising=False)
    data = load("digits")
    assert data.shape == (1, 8, 8) and data.num_classes == 10 and not data.augment
    assert len(data.train) == 1438 and len(data.test) == 359
    counts = np.bincount(data.train.labels) + np.bincount(data.test.labels)
    assert counts.tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]  # scikit-learn's
    assert max(data.train.x.max(), data.test.x.max()) == 16
    assert not {x.tobytes() for x in data.train.x} & {x.tobytes() for x in data.test.x}
    np.testing.assert_array_equal(data.test.x, load("digits").test.x)


def test_where_data_are_looked_for(monkeypatch, tmp_path):
    monkeypatch.delenv("SPARSE_DATA", raising=False)
    assert data_root().as_posix() == "data"
    monkeypatch.setenv("SPARSE_DATA", "")  # set to nothing is not set
    assert data_root().as_posix() == "data"
    monkeypatch.setenv("SPARSE_DATA", str(tmp_path / "a"))
    assert data_root() == tmp_path / "a"
    assert data_root(tmp_path / "b") == tmp_path / "b"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_root("~/c") == tmp_path / "c"


def test_each_place_is_used(monkeypatch, tmp_path):
    for name in ("argument", "variable", "here"):
        (tmp_path / name / "data").mkdir(parents=True)
        x = np.full((20, 4, 4), len(name), dtype=np.uint8)
        for folder in (tmp_path / name, tmp_path / name / "data"):
            np.savez(folder / "some.npz", x=x, y=np.zeros(20, int))
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.delenv("SPARSE_DATA", raising=False)
    assert load("some").mean == (4.0,)
    monkeypatch.setenv("SPARSE_DATA", str(tmp_path / "variable"))
    assert load("some").mean == (8.0,)
    assert load("some", tmp_path / "argument").mean == (8.0,)
    assert load(str(tmp_path / "here" / "some.npz")).mean == (4.0,)


def test_a_path_is_that_path(monkeypatch, tmp_path):
    """From the working directory, whatever the root is; also from one folder up, or from home."""
    (tmp_path / "data" / "data").mkdir(parents=True)
    np.savez(tmp_path / "data" / "mine.npz", x=np.full((20, 4, 4), 7, np.uint8), y=np.zeros(20, int))
    monkeypatch.setenv("SPARSE_DATA", str(tmp_path / "data" / "data"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for name in ("data/mine.npz", "./data/mine.npz", "~/data/mine.npz"):
        assert load(name, tmp_path / "nowhere").mean == (7.0,) and load(name).name == "mine"
    monkeypatch.chdir(tmp_path / "data")
    assert load("mine.npz").mean == (7.0,)
    with pytest.raises(FileNotFoundError) as caught:
        load("data/mine.npz")
    assert str(caught.value) == (
        f"data.name: expected an .npz file, got data/mine.npz: there is no file {tmp_path}/data/data/mine.npz"
    )


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("cifar10", ["cifar-10-binary.tar.gz", "cifar-10-batches-bin", "CIFAR page", "SPARSE_DATA"]),
        ("cifar100", ["cifar-100-binary.tar.gz", "cifar-100-binary", "CIFAR page", "SPARSE_DATA"]),
        ("ham10000", ["Harvard Dataverse", "ham10000.npz", "lesion_id", "SPARSE_DATA"]),
        ("cifra10", ["cifra10.npz", "digits, cifar10, cifar100, ham10000", "x and y"]),
    ],
)
def test_nothing_there(tmp_path, name, said):
    with pytest.raises(FileNotFoundError) as caught:
        load(name, tmp_path / "nowhere")
    for words in (*said, str(tmp_path / "nowhere")):
        assert words in str(caught.value)


def test_ham10000_needs_lesions(tmp_path):
    content = {"x": np.zeros((30, 4, 4, 3), np.uint8), "y": np.arange(30) % 2}
    np.savez(tmp_path / "ham10000.npz", **content)
    with pytest.raises(ValueError, match="ham10000.npz: expected an array 'lesion_id'"):
        load("ham10000", tmp_path)
    np.savez(tmp_path / "ham10000.npz", **content, lesion_id=np.arange(30) // 2 * 2 + np.arange(30) % 2)
    assert load("ham10000", tmp_path).shape == (3, 4, 4)


def blocks(root, size=8):
    """Images of four plain quarters."""
    quarters = np.random.default_rng(0).integers(0, 256, (20, 2, 2, 3), dtype=np.uint8)
    x = quarters.repeat(size // 2, 1).repeat(size // 2, 2)
    np.savez(root / "blocks.npz", x=x, y=np.zeros(20, int), x_test=x[:2], y_test=np.zeros(2, int))
    return quarters.transpose(0, 3, 1, 2)


@pytest.mark.parametrize("size", [2, 4, 8, 16])
def test_resizing_keeps_the_corners_and_the_order(tmp_path, size):
    quarters = blocks(tmp_path)
    data = adjusted(load("blocks", tmp_path), size=size)
    assert data.shape == (3, size, size) and data.train.x.dtype == np.uint8
    corners = data.train.x[:, :, :: size - 1, :: size - 1].astype(int)
    near = 0 if size >= 8 else 60 if size == 2 else 30  # a small image's corner is a mean around it
    assert abs(corners - quarters).max() <= near
    np.testing.assert_array_equal(data.test.x, data.train.x[:2])
    np.testing.assert_allclose(data.mean, data.train.x.mean(axis=(0, 2, 3)))
    np.testing.assert_allclose(data.std, data.train.x.std(axis=(0, 2, 3)))


@pytest.mark.parametrize(
    ("row", "size", "expected"),
    [
        ([0, 100], 4, [0, 25, 75, 100]),
        ([0, 3], 4, [0, 1, 2, 3]),  # 0, 0.75, 2.25, 3
    ],
)
def test_resizing_is_bilinear(tmp_path, row, size, expected):
    x = np.tile(np.array(row, np.uint8), (20, len(row), 1))
    np.savez(tmp_path / "row.npz", x=x, y=np.zeros(20, int))
    images = adjusted(load("row", tmp_path), size=size).train.x
    np.testing.assert_array_equal(images, np.tile(expected, (16, 1, size, 1)))


def test_shrinking_leaves_no_pixel_out(tmp_path):
    """16 pixels to 2. Without antialiasing only 3, 4, 11 and 12 would be looked at, and those are white."""
    row = np.zeros(16, np.uint8)
    row[[3, 4, 11, 12]] = 255
    np.savez(tmp_path / "row.npz", x=np.tile(row, (20, 16, 1)), y=np.zeros(20, int))
    images = adjusted(load("row", tmp_path), size=2).train.x
    assert 0.2 * 255 < images.min() and images.max() < 0.3 * 255  # about a quarter is white


def test_same_size_is_the_same_set(tmp_path):
    blocks(tmp_path)
    data = load("blocks", tmp_path)
    assert adjusted(data, size=8) is data
    with pytest.raises(ValueError, match="at least 1 pixel, got 0"):
        adjusted(data, size=0)


def test_resizing_takes_no_generator_and_no_gradient(tmp_path):
    blocks(tmp_path)
    before = torch.random.get_rng_state()
    adjusted(load("blocks", tmp_path), size=4)
    assert torch.equal(before, torch.random.get_rng_state())


def test_real_ham10000(real):
    data = adjusted(real("ham10000"), size=64)
    assert data.shape == (3, 64, 64)
    assert data.classes == ("akiec", "bcc", "bkl", "df", "mel", "nv", "vasc")
    counts = np.bincount(data.train.labels) + np.bincount(data.test.labels)
    assert counts.tolist() == [327, 514, 1099, 115, 1113, 6705, 142]  # published
    np.testing.assert_allclose(np.bincount(data.test.labels) / counts, 0.2, atol=0.01)
    np.testing.assert_allclose(np.array(data.mean) / 255, [0.7635, 0.5462, 0.5706], atol=0.005)


def test_real_mnist5k(real):
    data = real("mnist5k")
    assert data.shape == (1, 28, 28) and np.bincount(data.test.labels).tolist() == [100] * 10


def test_adjusted_numbers_are_standardised_and_bytes_keep_their_mean():
    x = np.random.default_rng(0).normal(3, 2, size=(20, 4))
    vectors = from_arrays(x, np.zeros(20, int), x, np.zeros(20, int))
    assert adjusted(vectors).mean == () and adjusted(vectors, normalise=True).mean == pytest.approx(x.mean(0))
    images = replace(load("digits"), mean=(1.0,), std=(2.0,))
    assert adjusted(images, normalise=True).mean == (1.0,)
    assert adjusted(images, augment=True).augment and not adjusted(images).augment


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"augment": True}, r"arrays: expected images to crop and mirror, got samples \(4,\)"),
        ({"size": 8}, r"size: expected images of bytes to resize, got float32 samples \(4,\) of arrays"),
    ],
)
def test_vectors_are_neither_cropped_nor_resized(options, message):
    with pytest.raises(ValueError, match=message):
        adjusted(from_arrays(np.zeros((20, 4)), np.arange(20) % 2), **options)
