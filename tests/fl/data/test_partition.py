"""Partitions: disjoint, equal, in the class shares, the same for the same seed; and fast."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fl.data import load, partition
from fl.data.samples import _test_counts, deal

KINDS = ("dirichlet", "pathological", "iid")


def counted(samples, labels, num_classes):
    """Class counts by a plain loop."""
    return [np.bincount(labels[samples.of(k)], minlength=num_classes) for k in range(len(samples.indptr) - 1)]


@pytest.fixture(scope="module")
def digits():
    return load("digits")


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(KINDS), num_clients=st.integers(1, 60), disjoint=st.booleans(),
    seed=st.integers(0, 2**40), alpha=st.sampled_from([1e-9, 0.01, 0.3, 1e9]), classes=st.integers(1, 5),
    per=st.none() | st.integers(5, 20), test_per=st.none() | st.integers(1, 359),
)  # fmt: skip
def test_what_every_partition_is(digits, kind, num_clients, disjoint, seed, alpha, classes, per, test_per):
    options = {"alpha": alpha, "classes_per_client": classes, "seed": seed, "disjoint": disjoint}
    options |= {"train_per_client": per or (None if disjoint else 30), "test_per_client": test_per}
    result = partition(digits, num_clients, kind, **options)
    assert result.num_clients == num_clients
    for samples, part, counts in (
        (result.train, digits.train, result.train_counts),
        (result.test, digits.test, result.test_counts),
    ):
        assert samples.indptr.dtype == np.int64 and samples.indices.dtype == np.int32
        assert samples.indptr[0] == 0 and samples.indptr[-1] == len(samples.indices)
        assert samples.indices.min() >= 0 and samples.indices.max() < len(part)
        np.testing.assert_array_equal(counts, counted(samples, part.labels, 10))
        for k in range(num_clients):
            assert len(np.unique(samples.of(k))) == len(samples.of(k)) > 0
    sizes = {*np.diff(result.train.indptr).tolist()}
    assert len(sizes) == 1 and (per is None or sizes == {per})
    used = np.bincount(result.train.indices, minlength=len(digits.train))
    if disjoint:
        assert used.max() == 1
    if disjoint and per is None and kind != "pathological":
        assert sizes == {len(digits.train) // num_clients}
    if kind == "pathological":
        assert ((result.train_counts > 0).sum(1) == classes).all()
    again = partition(digits, num_clients, kind, **options)
    np.testing.assert_array_equal(result.train.indices, again.train.indices)
    np.testing.assert_array_equal(result.test.indices, again.test.indices)


@pytest.mark.parametrize("kind", KINDS)
def test_another_seed_is_another_partition(digits, kind):
    a, b = (partition(digits, 12, kind, seed=seed) for seed in (0, 1))
    assert not np.array_equal(a.train.indices, b.train.indices)
    assert not np.array_equal(a.test.indices, b.test.indices)


def test_test_options_do_not_move_training_samples(digits):
    a, b = (partition(digits, 12, test_per_client=n) for n in (5, 50))
    np.testing.assert_array_equal(a.train.indices, b.train.indices)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("wanted", [None, 40, 359])
def test_test_sets_have_the_training_shares(digits, kind, wanted):
    result = partition(digits, 12, kind, test_per_client=wanted)
    stock = np.bincount(digits.test.labels)
    share = result.train_counts / result.train_counts.sum(1, keepdims=True)
    size = result.test_counts.sum(1)
    assert (abs(result.test_counts - size[:, None] * share) < 1 + 1e-9).all()
    assert (size <= (wanted or 100)).all()
    largest = (stock / np.maximum(share, 1e-12)).min(1)  # with more, some class would not suffice
    np.testing.assert_array_equal(size, np.minimum(np.floor(largest + 1e-9), wanted or 100))


def test_test_counts_by_hand():
    counts = np.array([[5, 5, 0], [10, 0, 0], [9, 0, 1], [1, 2, 9], [0, 3, 0]])
    ours = _test_counts(counts, np.array([10, 30, 0]), 25)  # class 2 has no test samples: it does not count
    assert ours.tolist() == [[10, 10, 0], [10, 0, 0], [10, 0, 0], [8, 17, 0], [0, 25, 0]]


def test_dealt_samples_are_all_used_before_one_is_used_twice():
    labels = np.array([0, 1, 1, 0, 1, 0, 1, 1])
    counts = np.array([[2, 1], [2, 3], [1, 4]])  # class 0 has 3 samples, class 1 has 5
    dealt = deal(counts, labels, np.random.default_rng(0))
    np.testing.assert_array_equal(counted(dealt, labels, 2), counts)
    used = np.bincount(dealt.indices, minlength=8)
    assert sorted(used[labels == 0]) == [1, 2, 2] and sorted(used[labels == 1]) == [1, 1, 2, 2, 2]


def test_test_sets_are_disjoint_while_samples_last(digits):
    result = partition(digits, 12, "iid", test_per_client=20)
    assert np.bincount(result.test.indices).max() <= 2
    result = partition(digits, 3, "iid", test_per_client=100)
    assert np.bincount(result.test.indices).max() == 1


def test_every_sample_is_as_likely(digits):
    """Client 0 of 12 gets each training sample in 1/12 of all seeds."""
    hits = np.zeros(len(digits.train))
    for seed in range(600):
        hits[partition(digits, 12, "iid", seed=seed).train.of(0)] += 1
    expected = 600 * 119 / 1438
    chi2 = ((hits - expected) ** 2 / (expected * (1 - 119 / 1438))).sum()
    assert abs(chi2 - 1438) < 5 * (2 * 1438) ** 0.5


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"num_clients": 0}, "num_clients of at least 1, got 0"),
        (
            {"num_clients": 1439},
            "at most 1,438 clients to divide 1,438 training samples among, got num_clients = 1,439; or let",
        ),
        (
            {"train_per_client": 144},
            r"at most 143 training samples per client \(1,438 for 10 clients\), got train_per_client = 144",
        ),
        ({"train_per_client": 144, "kind": "iid"}, "at most 143"),
        ({"train_per_client": 0}, "train_per_client of at least 1, got 0"),
        ({"train_per_client": 1439, "disjoint": False}, "at most 1,438 .* got train_per_client = 1,439$"),
        ({"disjoint": False}, "train_per_client with disjoint = false"),
        ({"test_per_client": 0}, "test_per_client of at least 1, got 0"),
        ({"test_per_client": 360}, "test_per_client up to 359, got 360"),
        ({"kind": "random"}, "out of \\['dirichlet', 'pathological', 'iid', 'groups'\\], got 'random'"),
        ({"alpha": 0}, "alpha from 1e-9 on, got 0"),
        ({"alpha": float("nan")}, "alpha from 1e-9 on, got nan"),
        ({"kind": "pathological", "classes_per_client": 11}, "1 to 10 classes per client, got 11"),
        ({"kind": "pathological", "classes_per_client": 0}, "1 to 10 classes per client, got 0"),
        (
            {"kind": "pathological", "train_per_client": 500},
            r"\(what there is for each of 10 with 2 classes\), got train_per_client = 500",
        ),
    ],
)
def test_refusals(digits, how, message):
    with pytest.raises(ValueError, match=message):
        partition(digits, **{"num_clients": 10} | how)


def test_a_client_without_test_samples_is_refused(labelled):
    data = labelled([0] * 50 + [1] * 50, [0] * 10)
    with pytest.raises(
        ValueError, match=r"got none for client \d: it trains on the classes \[1\], and the test part has no"
    ):
        partition(data, 10, "pathological", classes_per_client=1)
    result = partition(data, 10, "iid")  # a class without test samples has no share of the test set
    assert (result.test_counts[:, 0] == 10).all() and (result.test_counts[:, 1] == 0).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_hundred_thousand_clients_take_seconds(labelled, kind):
    data = labelled(np.arange(1_000_000) % 10, np.arange(10_000) % 10)
    start = time.process_time()
    result = partition(data, 100_000, kind)
    assert time.process_time() - start < 10  # measured: 1 to 2
    assert (np.diff(result.train.indptr) == 10).all() and np.bincount(result.train.indices).max() == 1


@pytest.mark.parametrize("kind", KINDS)
def test_real_cifar10_as_in_the_paper(real, kind):
    result = partition(real("cifar10"), 100, kind)
    assert (np.diff(result.train.indptr) == 500).all()
    assert (np.diff(result.test.indptr) == 100).all()
    assert len(np.unique(result.train.indices)) == 50_000
