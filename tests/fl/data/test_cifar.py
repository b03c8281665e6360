"""The official binary format, byte by byte, on small files; the real ones where they are."""

from dataclasses import replace

import numpy as np
import pytest

from fl.data import cifar, load, sets

HIGHEST = {"cifar10": 9, "cifar100": 99}


def record(name, label, pixels):
    """One record as the official page describes it."""
    head = [label] if name == "cifar10" else [label % 20, label]  # coarse, fine
    return bytes(head) + pixels.astype(np.uint8).tobytes()


@pytest.fixture(params=["cifar10", "cifar100"])
def small(request, tmp_path, monkeypatch):
    """(name, directory, files): 7 records a training file, 3 a test file; pixels (i + position) mod 251."""
    binary = replace(sets.BINARIES[request.param], records=(7, 3))
    monkeypatch.setitem(sets.BINARIES, binary.name, binary)
    folder = tmp_path / binary.folder
    folder.mkdir()
    files = {}
    for name, n in [*((name, 7) for name in binary.train), *((name, 3) for name in binary.test)]:
        first = 11 * len(files)
        files[name] = folder / name
        records = [record(binary.name, label(binary.name, first + i), pixels(first + i)) for i in range(n)]
        files[name].write_bytes(b"".join(records))
    return binary.name, tmp_path, files


def label(name, i):
    return 7 * i % (HIGHEST[name] + 1)


def pixels(i):
    return (i + np.arange(3 * 32 * 32)) % 251


def test_records_become_images(small):
    name, root, files = small
    data = load(name, root)
    assert data.shape == (3, 32, 32) and data.num_classes == HIGHEST[name] + 1 and data.augment
    assert len(data.train) == 7 * (len(files) - 1) and len(data.test) == 3
    numbers = [11 * f + i for f in range(len(files) - 1) for i in range(7)]
    for part, ids in ((data.train, numbers), (data.test, [11 * (len(files) - 1) + i for i in range(3)])):
        np.testing.assert_array_equal(part.labels, [label(name, i) for i in ids])
        np.testing.assert_array_equal(part.x, [pixels(i).reshape(3, 32, 32) for i in ids])
    red, green, blue = data.train.x[0, :, 0, 0]
    assert (red, green, blue) == (0, 1024 % 251, 2048 % 251)  # planes, not interleaved


def test_one_file_is_a_memory_map(small):
    name, root, _ = small
    data = load(name, root)
    assert isinstance(data.test.x.base, np.memmap) and not data.test.x.flags.writeable
    assert isinstance(data.train.x.base, np.memmap) == (name == "cifar100")


def test_class_names(small):
    name, root, files = small
    assert load(name, root).classes == tuple(map(str, range(HIGHEST[name] + 1)))
    names = next(iter(files.values())).with_name(sets.BINARIES[name].names)
    words = [f"class{i}" for i in range(HIGHEST[name] + 1)]
    names.write_text("\n".join(words) + "\n\n")  # as in the archive: an empty line at the end
    assert load(name, root).classes == tuple(words)
    names.write_text("only one\n")
    with pytest.raises(ValueError, match=f"{names.name}: expected {HIGHEST[name] + 1} class names, got 2"):
        load(name, root)


@pytest.mark.parametrize(
    "change", [lambda b: b[:-1], lambda b: b + b"\0", lambda b: b[: len(b) // 7], lambda b: b""]
)
def test_a_truncated_file_is_named(small, change):
    name, root, files = small
    broken = list(files.values())[-2]
    whole = broken.read_bytes()
    broken.write_bytes(change(whole))
    with pytest.raises(
        ValueError, match=rf"{broken.name}: expected {len(whole):,} bytes \(7 records of 307\d\)"
    ):
        load(name, root)


def test_a_wrong_label_is_named(small):
    name, root, files = small
    broken = list(files.values())[-1]
    content = bytearray(broken.read_bytes())
    width = len(content) // 3
    content[width + width - 3073] = HIGHEST[name] + 1  # the (fine) label of record 1
    broken.write_bytes(content)
    message = f"{broken.name}: expected labels from 0 to {HIGHEST[name]}, got {HIGHEST[name] + 1} in record 1"
    with pytest.raises(ValueError, match=message):
        load(name, root)


def test_a_missing_file_says_what_to_do(small):
    name, root, files = small
    gone = list(files.values())[-2]
    gone.unlink()
    with pytest.raises(FileNotFoundError) as caught:
        load(name, root)
    for part in (str(gone), sets.BINARIES[name].archive, "www.cs.toronto.edu/~kriz/cifar.html", str(root)):
        assert part in str(caught.value)


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_official_sizes(name):
    """The archives' own: 50,000 training and 10,000 test images of 3,073 or 3,074 bytes."""
    binary = sets.BINARIES[name]
    assert binary.records[0] * len(binary.train) == 50_000 and binary.records[1] * len(binary.test) == 10_000
    assert binary.label_bytes == {"cifar10": 1, "cifar100": 2}[name]


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_the_real_set(name, real):
    data = real(name)
    classes = HIGHEST[name] + 1
    np.testing.assert_array_equal(np.bincount(data.train.labels), np.full(classes, 50_000 // classes))
    np.testing.assert_array_equal(np.bincount(data.test.labels), np.full(classes, 10_000 // classes))
    x = data.train.x
    mean, std = x.mean(axis=(0, 2, 3)), [x[:, c].std() for c in range(3)]
    np.testing.assert_allclose(data.mean, mean, atol=1e-4)
    np.testing.assert_allclose(data.std, std, atol=1e-4)
    if name == "cifar10":
        assert data.train.labels[:5].tolist() == [6, 9, 9, 4, 1]  # published
        assert data.test.labels[:5].tolist() == [3, 8, 8, 0, 6]
        assert data.classes[6] == "frog"
    assert cifar.CIFAR10.mean != cifar.CIFAR100.mean
