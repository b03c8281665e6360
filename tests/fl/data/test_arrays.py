"""from_arrays: what x and y may be, what becomes of them, and every refusal."""

import numpy as np
import pytest
import torch

from fl.data import from_arrays

X = np.random.default_rng(0).normal(size=(100, 6))
Y = np.arange(100) % 4


def test_vectors_of_floats_stay_as_they_are():
    data = from_arrays(X, Y, X[:10], Y[:10], name="mine")
    np.testing.assert_array_equal(data.train.x, X.astype(np.float32))
    assert (data.name, data.shape, data.classes) == ("mine", (6,), ("0", "1", "2", "3"))
    assert data.mean == data.std == () and not data.augment


def test_tensors_are_arrays():
    x = torch.tensor(X, requires_grad=True)
    given = from_arrays(x, torch.tensor(Y), x[:10], torch.tensor(Y[:10], dtype=torch.int8))
    np.testing.assert_array_equal(given.train.x, X.astype(np.float32))
    assert given.test.labels.dtype == np.int64


def test_the_seed_draws_the_test_part():
    one, same, other = (from_arrays(X, Y, seed=seed, test_share=0.4) for seed in (1, 1, 2))
    assert np.bincount(one.test.labels).tolist() == [10] * 4
    np.testing.assert_array_equal(one.test.x, same.test.x)
    assert not np.array_equal(one.test.x, other.test.x)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((7, 2), (7, 2)),
        ((5, 8, 9), (5, 8, 9)),
        ((3, 8, 9), (3, 8, 9)),
        ((8, 9, 3), (3, 8, 9)),  # channels last
        ((3, 8, 3), (3, 8, 3)),
        ((2, 2, 2, 2), (2, 2, 2, 2)),
    ],
)
def test_shapes_of_floats(shape, expected):
    x = np.random.default_rng(0).normal(size=(100, *shape)).astype(np.float32)
    data = from_arrays(x, Y, x, Y)
    assert data.shape == expected
    np.testing.assert_array_equal(data.train.x, x if shape == expected else x.transpose(0, 3, 1, 2))


def test_bytes_are_images_and_vectors_of_bytes_have_one_mean():
    x = np.random.default_rng(0).integers(0, 256, (100, 8, 8), dtype=np.uint8)
    assert from_arrays(x, Y).shape == (1, 8, 8)
    data = from_arrays(x.reshape(100, 64), Y)
    assert data.shape == (64,) and data.mean == pytest.approx((data.train.x.mean(),))


def test_groups_are_kept_together_or_are_clients():
    groups = np.array([f"patient {i // 10}" for i in range(100)])
    apart = from_arrays(X, Y, groups=groups)
    assert not {*apart.train.groups} & {*apart.test.groups}
    natural = from_arrays(X, Y, groups=groups, natural=True)
    assert {*natural.train.groups} == {*natural.test.groups} == {*groups} and len(natural.test) == 20


def test_a_group_of_one_sample_is_for_training():
    groups = np.where(np.arange(100) < 99, "many", "one")
    data = from_arrays(X, Y, groups=groups, natural=True, test_share=0.001)
    assert data.test.groups.tolist() == ["many"] and "one" in data.train.groups


def test_natural_clients_without_groups_are_the_usual_split():
    np.testing.assert_array_equal(from_arrays(X, Y, natural=True).test.x, from_arrays(X, Y).test.x)


@pytest.mark.parametrize(("classes", "names"), [(6, tuple("012345")), (list("abcd"), tuple("abcd"))])
def test_classes_by_number_or_name(classes, names):
    assert from_arrays(X, Y, classes=classes).classes == names


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"y": Y / 2}, r"y as 100 integer labels, one per sample, got float64 \(100,\)"),
        ({"y": Y[:50]}, r"got int64 \(50,\)"),
        ({"y": np.eye(4)[Y].astype(int)}, r"got int64 \(100, 4\)"),
        ({"y": np.array(["a"] * 100)}, "integer labels, one per sample, got <U1"),
        ({"y": Y - 1}, "y from 0 to 65535, got -1 to 2"),
        ({"y": Y, "classes": 3}, "y from 0 to 2, got 0 to 3"),
        ({"y": Y, "classes": ["a"]}, "y from 0 to 0, got 0 to 3"),
        ({"y": Y * 2}, r"every class from 0 to 6, got none of 3 \(1, 3, 5\)"),
        ({"x": X.astype(int)}, r"x as uint8 .* or as floats, got int64 \(100, 6\)"),
        ({"x": X[:, 0]}, r"or \[n, features\], got \(100,\)"),
        ({"x": np.array([{}] * 100)}, "got object"),
        ({"x": np.where(X > 2, np.nan, X)}, "finite numbers, got not a number in sample"),
        ({"x": X * 1e300}, "finite numbers, got an infinite one in sample 0"),
        ({"x_test": X}, "'x_test' and 'y_test', got no 'y_test'"),
        ({"x_test": X[:, :3], "y_test": Y}, r"one shape, got .*\(6,\).*\(3,\)"),
        ({"x_test": X.astype(np.float32), "y_test": Y + 1}, r"got none of 1 \(4\)"),
        ({"groups": np.arange(3)}, r"one group per label, got groups \(3,\)"),
        ({"groups": np.where(Y == 0, np.nan, Y)}, "a group for every sample"),
        ({"test_share": 1.0}, "between 0 and 1, got 1.0"),
    ],
)
def test_refusals(given, message):
    with pytest.raises(ValueError, match=message):
        from_arrays(**{"x": X, "y": Y} | given)


def test_a_number_that_is_none_is_named_by_the_sample_that_was_given():
    x, y = np.zeros((100, 3)), np.arange(100) % 2
    x[70, 1] = np.nan
    with pytest.raises(ValueError, match="^x: expected finite numbers, got not a number in sample 70$"):
        from_arrays(x, y)
    with pytest.raises(ValueError, match="^x_test: expected finite numbers, got not a number in sample 70$"):
        from_arrays(np.zeros((100, 3)), y, x, y)


def test_lists_of_different_lengths_are_named():
    with pytest.raises(ValueError, match="expected x as an array, got list: .*inhomogeneous"):
        from_arrays([[1.0, 2.0], [3.0]], [0, 1])
