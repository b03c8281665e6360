"""The split: every class in its share, groups whole, the same for everybody."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fl.data.split import split


def labels_and_groups(seed, n, classes, groups):
    """A group has one class."""
    rng = np.random.default_rng(seed)
    group = rng.integers(0, groups, n)
    return rng.integers(0, classes, groups)[group], group


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32), st.integers(1, 300), st.integers(1, 5), st.integers(1, 100), st.floats(0.05, 0.95)
)
def test_every_sample_once_every_group_whole_every_class_in_its_share(seed, n, classes, groups, share):
    labels, group = labels_and_groups(seed, n, classes, groups)
    train, test = split(labels, group, share)
    np.testing.assert_array_equal(np.sort(np.concatenate([train, test])), np.arange(n))
    assert (np.diff(train) > 0).all() and (np.diff(test) > 0).all()
    assert not {*group[train]} & {*group[test]}
    for c in range(classes):
        of_class = np.flatnonzero(labels == c)
        largest = np.bincount(group[of_class]).max() if len(of_class) else 0
        assert abs(np.isin(of_class, test).sum() - share * len(of_class)) <= largest / 2 + 1e-9


def test_ungrouped_is_a_group_each():
    labels = np.arange(50) % 5
    for ours, theirs in zip(split(labels), split(labels, np.arange(50)), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert len(split(labels)[1]) == 10


def test_names_of_groups_decide_not_the_order_of_the_rows():
    labels, group = labels_and_groups(1, 200, 3, 60)
    names = np.array([f"lesion {g:03d}" for g in group])
    shuffled = np.random.default_rng(2).permutation(200)
    before, after = split(labels, names)[1], split(labels[shuffled], names[shuffled])[1]
    assert {*names[before]} == {*names[shuffled][after]}


def test_the_test_part_is_not_the_beginning_nor_the_end():
    test = split(np.zeros(1000, dtype=np.int64))[1]
    assert abs(test.mean() - 500) < 5 * 1000 / np.sqrt(12 * 200)  # 5 standard errors


def test_a_group_of_two_classes_counts_for_the_first():
    labels = np.array([0, 1] * 10)
    train, test = split(labels, np.arange(20) // 2)
    assert len(test) == 4 and labels[test].tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize("share", [0, 1, -0.1, float("nan")])
def test_a_share_is_between_0_and_1(share):
    with pytest.raises(ValueError, match="between 0 and 1"):
        split(np.zeros(3, dtype=np.int64), share=share)
