"""Clients by lists of samples and by groups, against plain loops; every refusal names the client."""

import numpy as np
import pytest
import torch

from fl import config
from fl.data import from_arrays, load, partition, partition_by_groups, partition_by_lists
from fl.run import setup


def grouped(sizes, test_sizes=None, seed=0):
    """A data set with groups of these sizes, by name, mixed at random."""
    rng = np.random.default_rng(seed)
    parts = []
    for now in (sizes, test_sizes or sizes):
        groups = rng.permutation(np.repeat(list(now), list(now.values())))
        parts += [rng.normal(size=(len(groups), 3)), np.arange(len(groups)) % 2, groups]
    x, y, groups, x_test, y_test, groups_test = parts
    return from_arrays(x, y, x_test, y_test, groups=groups, groups_test=groups_test, name="grouped")


def check_counts(data, parts):
    """The class counts are those of the samples."""
    for part, samples, counts in (
        (data.train, parts.train, parts.train_counts),
        (data.test, parts.test, parts.test_counts),
    ):
        for k in range(parts.num_clients):
            expected = np.bincount(part.labels[samples.of(k)], minlength=data.num_classes)
            assert counts[k].tolist() == expected.tolist()


def test_lists_are_taken_as_they_are():
    data, lists = load("digits"), [[5, 3, 3], np.array([7], np.uint8), torch.tensor([0, 1]), (5, 1437)]
    parts = partition_by_lists(data, lists)
    assert [parts.train.of(k).tolist() for k in range(4)] == [[5, 3, 3], [7], [0, 1], [5, 1437]]
    assert parts.num_clients == 4 and parts.train.sizes == {1, 2, 3}
    check_counts(data, parts)


def test_lists_of_another_partition_are_that_partition():
    """Test sets too: they follow from the class shares and the seed alone."""
    data = load("digits")
    for kind in ("dirichlet", "iid"):
        one = partition(data, 7, kind, seed=3, test_per_client=20)
        other = partition_by_lists(data, [one.train.of(k) for k in range(7)], test_per_client=20, seed=3)
        np.testing.assert_array_equal(one.train.indices, other.train.indices)
        np.testing.assert_array_equal(one.test.indices, other.test.indices)
        np.testing.assert_array_equal(one.test_counts, other.test_counts)


def test_test_lists():
    data = load("digits")
    parts = partition_by_lists(data, [[0], [1]], test_lists=[[9, 8], [7]])
    assert [parts.test.of(k).tolist() for k in range(2)] == [[9, 8], [7]]
    check_counts(data, parts)


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        ([[0], []], r"lists\[1\]: expected at least one sample of the client, got none"),
        ([[0], [1438]], r"lists\[1\]: expected indices from 0 to 1437, got 1438 to 1438"),
        ([[-1, 2]], r"lists\[0\]: expected indices from 0 to 1437, got -1 to 2"),
        ([[0.5]], r"lists\[0\]: expected a list of indices, got float64 \(1,\)"),
        ([[True] * 1438], r"lists\[0\]: expected a list of indices, got bool"),
        ([[[1], [1, 2]]], r"lists\[0\]: expected a list of indices, got list"),
        ([1, 2], r"lists\[0\]: expected a list of indices, got int64 \(\)"),
        ([], "lists as one list of indices per client, got list"),
        ("ab", "got str"),
        (7, "got int"),
    ],
)
def test_lists_that_are_none_are_refused(lists, message):
    with pytest.raises(ValueError, match=message):
        partition_by_lists(load("digits"), lists)


def test_test_lists_are_refused_likewise():
    with pytest.raises(ValueError, match=r"test_lists\[0\]: expected indices from 0 to 358, got 359 to 359"):
        partition_by_lists(load("digits"), [[0]], test_lists=[[359]])
    with pytest.raises(ValueError, match="test_lists for 2 clients, as lists has, got 1"):
        partition_by_lists(load("digits"), [[0], [1]], test_lists=[[0]])


def test_every_group_is_a_client_with_all_of_its_samples():
    data = grouped({"b": 9, "a": 4, "c": 20})
    parts = partition_by_groups(data, 3)
    for k, name in enumerate("abc"):
        assert parts.train.of(k).tolist() == np.flatnonzero(data.train.groups == name).tolist()
        assert parts.test.of(k).tolist() == np.flatnonzero(data.test.groups == name).tolist()
    check_counts(data, parts)


def test_the_largest_groups_are_clients_and_of_equals_the_first():
    data = grouped({"b": 9, "a": 4, "c": 20, "e": 9, "d": 9})
    parts = partition_by_groups(data, 3)
    owners = [{*data.train.groups[parts.train.of(k)]} for k in range(3)]
    assert owners == [{"b"}, {"c"}, {"d"}]


def test_groups_without_test_samples_are_no_clients():
    data = grouped({"a": 50, "b": 5, "c": 6}, {"b": 2, "c": 3})
    parts = partition_by_groups(data, 2)
    assert parts.train.sizes == {5, 6} and parts.test.sizes == {2, 3}
    with pytest.raises(
        ValueError, match="at most 2 clients, the 2 groups of grouped that have training and test"
    ):
        partition_by_groups(data, 3)


def test_groups_that_the_test_part_does_not_know_have_tests_in_class_shares():
    data = grouped({"a": 50, "b": 30}, {"c": 40})
    parts = partition_by_groups(data, 2, test_per_client=10)
    assert parts.test.sizes == {10} and parts.train.sizes == {50, 30}
    check_counts(data, parts)


def test_at_most_so_many_samples_drawn_by_the_seed():
    data = grouped({"a": 50, "b": 30, "c": 3})
    one, same, other = (
        partition(data, 3, "groups", train_per_client=20, test_per_client=5, seed=seed) for seed in (1, 1, 2)
    )
    assert one.train.sizes == {20, 3} and one.test.sizes == {5, 3}
    np.testing.assert_array_equal(one.train.indices, same.train.indices)
    assert not np.array_equal(one.train.indices, other.train.indices)
    for k, name in enumerate("abc"):
        assert {*data.train.groups[one.train.of(k)]} == {*data.test.groups[one.test.of(k)]} == {name}
        assert len({*one.train.of(k).tolist()}) == len(one.train.of(k))


def test_copies_stay_in_their_group():
    data = grouped({1: 10, 2: 6})
    parts = partition(data, 2, "groups", copies=[1, 3])
    assert parts.train_counts.sum(0).tolist() == [8, 24]
    assert [{*data.train.groups[parts.train.of(k)].tolist()} for k in range(2)] == [{1}, {2}]


def test_groups_that_are_not_there_are_an_error():
    with pytest.raises(
        ValueError, match="expected groups to make clients of, got none in digits: an .npz file"
    ):
        partition(load("digits"), 3, "groups")
    with pytest.raises(
        ValueError, match="at most 2 clients, the 2 groups of grouped .*, got num_clients = 7"
    ):
        partition(grouped({"a": 3, "b": 3}), 7, "groups")


def test_natural_clients_of_a_configuration(tmp_path):
    """A file with floats and groups: every client has the samples of its group, for training and tests."""
    rng = np.random.default_rng(0)
    y, groups = rng.integers(0, 3, 300), rng.integers(0, 4, 300)
    x = rng.normal(size=(300, 8)) + 3 * np.eye(3, 8)[y]
    np.savez(tmp_path / "mine.npz", x=x, y=y, groups=groups)
    changes = [
        "model.name=mlp",
        "data.partition=groups",
        f"data.name={tmp_path / 'mine.npz'}",
        "num_clients=4",
    ]
    changes += ["num_rounds=2", "training.epochs=1", "training.batch_size=16", "topology.degree=2"]
    setting = setup.prepare(config.changed(config.Config(), changes))
    sizes = np.bincount(setting.data.train.groups)
    assert np.diff(setting.partition.train.indptr).tolist() == sizes.tolist()
    assert (sizes + np.diff(setting.partition.test.indptr)).tolist() == np.bincount(groups).tolist()


def test_what_a_configuration_wants_of_vectors(tmp_path):
    np.savez(tmp_path / "mine.npz", x=np.random.default_rng(0).normal(size=(300, 8)), y=np.arange(300) % 3)
    changes = ["model.name=mlp", f"data.name={tmp_path / 'mine.npz'}", "num_clients=4", "topology.degree=2"]
    cfg = config.changed(config.Config(), changes)
    assert setup.prepare(cfg).data.mean == ()
    assert len(setup.prepare(config.changed(cfg, ["data.normalise=true"])).data.mean) == 8
    with pytest.raises(config.ConfigError, match="data: mine: expected images to crop and mirror"):
        setup.prepare(config.changed(cfg, ["data.augment=true"]))
