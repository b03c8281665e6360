"""Every accepted form of an .npz file, every refusal, and files that were damaged."""

import io
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fl.data import load, memory, npz
from fl.data.npz import read


def arrays(n=20, shape=(4, 5), **more):
    """n random images, two classes in turn."""
    x = np.random.default_rng(0).integers(0, 256, (n, *shape), dtype=np.uint8)
    return {"x": x, "y": np.arange(n) % 2} | more


@pytest.fixture
def saved(tmp_path):
    def save(**content):
        np.savez(tmp_path / "some.npz", **content)
        return tmp_path / "some.npz"

    return save


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize(
    ("shape", "axes"),
    [((4, 5), None), ((4, 5, 1), (0, 3, 1, 2)), ((4, 5, 3), (0, 3, 1, 2)), ((3, 4, 5), (0, 1, 2, 3))],
)
def test_images_come_out_channels_first(tmp_path, shape, axes, compressed):
    content = arrays(shape=shape)
    content |= {"x_test": content["x"][:3], "y_test": content["y"][:3]}
    (np.savez_compressed if compressed else np.savez)(tmp_path / "some.npz", **content)
    data = load("some", tmp_path)
    expected = content["x"][:, None] if axes is None else content["x"].transpose(axes)
    np.testing.assert_array_equal(data.train.x, expected)
    np.testing.assert_array_equal(data.train.labels, content["y"])
    np.testing.assert_array_equal(data.test.x, expected[:3])
    assert data.name == "some" and data.classes == ("0", "1") and not data.augment
    np.testing.assert_allclose(data.mean, expected.mean(axis=(0, 2, 3)))
    np.testing.assert_allclose(data.std, expected.std(axis=(0, 2, 3)))


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.int32, np.uint64])
def test_labels_of_any_integer_type(saved, dtype):
    content = arrays()
    assert read("some", saved(**content | {"y": content["y"].astype(dtype)})).train.labels.dtype == np.int64


def test_without_a_test_part_a_fifth_is_taken(saved):
    content = arrays(n=100)
    data = read("some", saved(**content))
    np.testing.assert_array_equal(np.bincount(data.test.labels), [10, 10])
    everything = np.concatenate([data.train.x, data.test.x])[:, 0]
    assert {image.tobytes() for image in everything} == {image.tobytes() for image in content["x"]}
    again = read("some", saved(**content))
    np.testing.assert_array_equal(data.test.x, again.test.x)


def test_mean_and_std_are_of_the_training_part(saved):
    data = read("some", saved(**arrays()))
    assert data.mean == pytest.approx([data.train.x.mean()])
    assert data.std == pytest.approx([data.train.x.std()])


@pytest.mark.parametrize("key", ["groups", "lesion_id"])
def test_groups_stay_together(saved, key):
    content = arrays(n=200)
    names = np.array([f"HAM_{i // 4:07d}" for i in range(200)])
    content["x"][:, 0, 0] = np.arange(200) // 4  # the group is in the image
    data = read("some", saved(**content | {"y": np.zeros(200, np.uint8), key: names}))
    train, test = ({*part.x[:, 0, 0, 0].tolist()} for part in (data.train, data.test))
    assert not train & test and len(train | test) == 50 and len(data.test) == 40


def test_groups_that_are_clients_have_both_parts(saved):
    content = arrays(n=200, groups=np.arange(200) // 10)
    data = read("some", saved(**content), natural=True)
    assert data.train.groups.tolist() == np.repeat(np.arange(20), 8).tolist()
    assert data.test.groups.tolist() == np.repeat(np.arange(20), 2).tolist()


def test_groups_of_a_given_test_part(saved):
    content = arrays(groups=np.arange(20) // 5, groups_test=np.array([3, 1]))
    content |= {"x_test": content["x"][:2], "y_test": content["y"][:2]}
    data = read("some", saved(**content))
    assert data.train.groups.tolist() == content["groups"].tolist() and data.test.groups.tolist() == [3, 1]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_floats_are_taken_as_they_are(saved, dtype):
    x = np.random.default_rng(0).normal(size=(20, 7)).astype(dtype)
    data = read("some", saved(x=x, y=np.arange(20) % 2, x_test=x[:3], y_test=np.zeros(3, int)))
    assert data.shape == (7,) and data.mean == () and data.train.x.dtype == np.float32
    np.testing.assert_array_equal(data.train.x, x.astype(np.float32))


def test_class_names_also_of_classes_without_samples(saved):
    assert read("some", saved(**arrays(classes=["a", "b", "never"]))).classes == ("a", "b", "never")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"y": np.zeros(3, int)}, "expected arrays 'x' and 'y', got no 'x'"),
        ({"x": np.zeros((3, 2, 2), np.uint8)}, "got no 'y'"),
        ({"images": np.zeros(3)}, "got no 'x' and no 'y'"),
        (arrays() | {"x": arrays()["x"].astype(np.int64)}, "uint8.*got int64"),
        (arrays(shape=()), r"expected x as \[n, H, W\].*got \(20,\)"),
        (arrays(shape=(2, 2, 2)), r"C = 1 or 3, got \(20, 2, 2, 2\)"),
        (arrays(shape=(3, 2, 3)), r"C = 1 or 3, got \(20, 3, 2, 3\)"),  # either could be the channels
        (arrays() | {"y": np.zeros(20)}, r"y as 20 integer labels, one per sample, got float64 \(20,\)"),
        (arrays() | {"y": np.zeros((20, 1), int)}, r"got int64 \(20, 1\)"),
        (arrays() | {"y": np.zeros(19, int)}, r"got int64 \(19,\)"),
        (arrays() | {"y": np.arange(20) - 1}, "y from 0 to 65535, got -1 to 18"),
        (arrays(classes=["one"]), "y from 0 to 0, got 0 to 1"),
        (arrays(classes=[["a", "b"]]), "list of names"),
        (arrays(x_test=np.zeros((2, 4, 5), np.uint8)), "'x_test' and 'y_test', got no 'y_test'"),
        (arrays(x_test=np.zeros((2, 5, 5), np.uint8), y_test=np.zeros(2, int)), "samples of one shape"),
        (arrays(groups=np.zeros(3)), r"one group per label, got groups \(3,\)"),
        (arrays(n=0), "at least one sample"),
        (arrays() | {"y": np.full(20, 2**63, np.uint64)}, "y from 0 to 65535, got 9223372036854775808 to"),
        (arrays(n=1), "at least one"),  # nothing is left for the other part
        (arrays(groups=np.zeros(20)), "at least one"),
    ],
)
def test_refusals_name_the_file(saved, content, message):
    path = saved(**content)
    with pytest.raises(ValueError, match=message) as caught:
        read("some", path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("shape", [(20, 0, 5), (20, 4, 0), (20, 0, 0, 3), (20, 1, 0, 4)])
def test_images_of_no_pixels_are_refused(saved, shape):
    with pytest.raises(ValueError, match="expected x as samples of at least one value, got"):
        read("some", saved(x=np.zeros(shape, np.uint8), y=np.arange(20) % 2))


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (
            np.where(np.arange(20) == 7, 65535, np.arange(20) % 2),
            r"got none of 65,533 \(2, 3, 4, 5, 6, \.\.\.\)",
        ),
        (
            np.arange(20) % 2 + 1,
            r"every class from 0 to 2, got none of 1 \(0\): number the classes without gaps",
        ),
    ],
)
def test_labels_with_gaps_are_refused_unless_the_classes_have_names(saved, labels, message):
    with pytest.raises(ValueError, match=message):
        read("some", saved(**arrays() | {"y": labels}))
    names = [f"class {i}" for i in range(labels.max() + 1)]
    assert read("some", saved(**arrays(classes=names) | {"y": labels})).num_classes == len(names)


def test_a_class_of_the_test_part_alone_is_refused(saved):
    test = {"x_test": arrays()["x"][:3], "y_test": np.array([0, 1, 2])}
    with pytest.raises(ValueError, match=r"training samples of every class from 0 to 2, got none of 1 \(2\)"):
        read("some", saved(**arrays(**test)))


@pytest.mark.parametrize("name", ["x", "x.npy"])
def test_a_member_that_is_no_array_is_refused(tmp_path, name):
    with zipfile.ZipFile(tmp_path / "some.npz", "w") as archive:
        archive.writestr(name, "no array")
    with pytest.raises(ValueError, match="expected an intact .npz file without pickles, got: .*no array"):
        read("some", tmp_path / "some.npz")


def announced(path, shape, content):
    """An archive whose header of x says `shape`."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": shape})
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", header.getvalue() + content)
    return path


def test_a_header_that_lies_is_refused_before_memory_is_taken(tmp_path):
    path = announced(tmp_path / "some.npz", (10**6, 10**3, 10**3), b"few")
    with pytest.raises(ValueError, match="x.npy of 1,000,000,000,000 bytes by its header .*, but with 3"):
        read("some", path)
    with pytest.raises(ValueError, match="by its header"):
        read("some", announced(tmp_path / "some.npz", (-1, -3, 1), b"few"))


def test_a_file_that_inflates_beyond_all_images_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(npz, "_LARGE", 10**6)
    path = announced(tmp_path / "some.npz", (100, 200, 200), bytes(4 * 10**6))
    with pytest.raises(ValueError, match="arrays of 0.0 GB in 0.0 MB, which no images compress to"):
        read("some", path)


def test_a_file_that_does_not_fit_into_memory_is_refused(saved, monkeypatch):
    monkeypatch.setattr(memory, "available", lambda: 1000)
    with pytest.raises(
        ValueError, match="expected the arrays, twice, to fit into memory, got .* 0.0 GB free"
    ):
        read("some", saved(**arrays(n=100)))


def test_pickles_are_not_read(saved):
    path = saved(x=np.array([{}], dtype=object), y=np.zeros(1, int))
    with pytest.raises(ValueError, match="without pickles, got: x.npy with pickled Python objects"):
        read("some", path)


def test_a_single_array_is_no_data_set(tmp_path):
    with open(tmp_path / "some.npz", "wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(ValueError, match="one array"):
        read("some", tmp_path / "some.npz")


def whole_file(compressed):
    buffer = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(buffer, **arrays())
    return buffer.getvalue()


@pytest.mark.parametrize("compressed", [False, True])
def test_a_truncated_file_is_an_error_that_names_it(tmp_path, compressed):
    path, content = tmp_path / "some.npz", whole_file(compressed)
    for size in [*range(0, len(content), 13), len(content) - 1]:
        path.write_bytes(content[:size])
        with pytest.raises(ValueError, match="expected an intact .npz file") as caught:
            read("some", path)
        assert str(path) in str(caught.value)


@settings(max_examples=300, deadline=None)
@given(compressed=st.booleans(), where=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_a_flipped_bit_is_an_error_or_changes_nothing(tmp_path_factory, compressed, where, bit):
    """The checksums of the zip see to it: what is read is what was written."""
    content = bytearray(whole_file(compressed))
    content[int(where * len(content))] ^= 1 << bit
    path = tmp_path_factory.getbasetemp() / "flipped.npz"
    path.write_bytes(content)
    try:
        data = read("some", path)
    except ValueError as refused:
        assert str(path) in str(refused)
    else:
        assert len(data.train) + len(data.test) == 20
        assert {x.tobytes() for x in data.train.x[:, 0]} <= {x.tobytes() for x in arrays()["x"]}
