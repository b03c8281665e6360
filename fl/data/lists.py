"""Clients as they are given: by lists of samples, or by the groups of the data (natural clients)."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl.data.arrays import array
from fl.data.dataset import Dataset
from fl.data.oversample import with_copies
from fl.data.samples import Partition, Samples, class_counts, with_test
from fl.rng import stream

Lists = Sequence[NDArray[np.integer]]


def partition_by_lists(
    data: Dataset,
    lists: Sequence[Any],
    *,
    test_lists: Sequence[Any] | None = None,
    test_per_client: int | None = None,
    seed: int = 0,
) -> Partition:
    """Client k has the training samples lists[k], and the test samples test_lists[k].

    lists             indices of training samples per client, as lists, arrays or tensors; none is empty
    test_lists        likewise of the test part; without them test sets are drawn by `seed`, in the class
                      shares of a client's training samples, `test_per_client` samples at most (default:
                      the test part divided by the clients, at least 100)

    >>> import numpy as np
    >>> from fl.data import load
    >>> parts = partition_by_lists(load("digits"), [[0, 1, 2], np.arange(10, 20)])
    >>> parts.num_clients, parts.train.of(0).tolist(), sorted(parts.train.sizes)
    (2, [0, 1, 2], [3, 10])
    """
    train = _samples("lists", lists, len(data.train))
    counts = class_counts(train, data.train.labels, data.num_classes)
    if test_lists is None:
        return with_test(data, train, counts, test_per_client, seed)
    test = _samples("test_lists", test_lists, len(data.test))
    if len(test.indptr) != len(train.indptr):
        wanted, given = len(train.indptr) - 1, len(test.indptr) - 1
        raise ValueError(f"expected test_lists for {wanted} clients, as lists has, got {given}")
    return Partition(train, test, counts, class_counts(test, data.test.labels, data.num_classes))


def partition_by_groups(
    data: Dataset,
    num_clients: int,
    *,
    train_per_client: int | None = None,
    test_per_client: int | None = None,
    copies: Sequence[int] | None = None,
    seed: int = 0,
) -> Partition:
    """One client per group, in the order of their names; of more groups the `num_clients` with most training
    samples.

    Test samples are those of the same group, and a group without any is no client. Where the two parts have
    no group in common, or the test part has no groups, test sets are drawn in class shares, as for other
    partitions. `train_per_client`, `test_per_client`: that many at most, drawn by `seed`.

    >>> import numpy as np
    >>> from fl.data import from_arrays
    >>> x, y, hospital = np.zeros((30, 4)), np.arange(30) % 2, np.repeat(["a", "b", "c"], [5, 15, 10])
    >>> data = from_arrays(x, y, groups=hospital, natural=True)
    >>> parts = partition_by_groups(data, 2)
    >>> [(len(parts.train.of(k)), len(parts.test.of(k))) for k in range(2)]  # hospitals b and c
    [(12, 3), (8, 2)]
    """
    if data.train.groups is None:
        raise ValueError(
            f"expected groups to make clients of, got none in {data.name}: an .npz file has them in an array "
            "'groups', fl.data.from_arrays takes them as groups=..."
        )
    numbers = with_copies(data.train.labels, data.num_classes, copies)
    groups = data.train.groups[numbers]
    names, sizes = np.unique(groups, return_counts=True)
    others = None if data.test.groups is None else np.isin(names, data.test.groups)
    own = others is not None and others.any()
    if own:
        names, sizes = names[others], sizes[others]
    if num_clients > len(names):
        which = f"{len(names):,} groups of {data.name}" + (
            " that have training and test samples" if own else ""
        )
        raise ValueError(
            f"expected at most {len(names):,} clients, the {which}, got num_clients = {num_clients:,}"
        )
    largest = np.sort(np.argsort(-sizes, kind="stable")[:num_clients])
    rng = stream(seed, "partition groups")
    train = [numbers[_some(members, train_per_client, rng)] for members in _members(groups, names[largest])]
    test = None
    if own and data.test.groups is not None:
        found = _members(data.test.groups, names[largest])
        test = [_some(members, test_per_client, rng) for members in found]
    return partition_by_lists(data, train, test_lists=test, test_per_client=test_per_client, seed=seed)


def _members(groups: NDArray, names: NDArray) -> list[NDArray[np.intp]]:
    """The samples of each of these groups, ascending."""
    known = np.flatnonzero(np.isin(groups, names))
    code = np.searchsorted(names, groups[known])
    order = known[np.argsort(code, kind="stable")]
    return np.split(order, np.cumsum(np.bincount(code, minlength=len(names)))[:-1])


def _some(members: NDArray[np.intp], most: int | None, rng: np.random.Generator) -> NDArray[np.intp]:
    """At most so many, drawn at random, ascending."""
    if most is None or len(members) <= most:
        return members
    return np.sort(rng.choice(members, most, replace=False))


def _samples(what: str, lists: Sequence[Any], there: int) -> Samples:
    if not isinstance(lists, Sequence) or isinstance(lists, str) or not len(lists):
        raise ValueError(f"expected {what} as one list of indices per client, got {type(lists).__name__}")
    found = [_indices(f"{what}[{k}]", one, there) for k, one in enumerate(lists)]
    indptr = np.concatenate([[0], np.cumsum([len(one) for one in found])])
    return Samples(indptr, np.concatenate(found).astype(np.int32))


def _indices(what: str, given: Any, there: int) -> NDArray[np.integer]:
    try:
        indices = array(given)
    except ValueError as wrong:  # lists of different lengths
        raise ValueError(f"{what}: expected a list of indices, got {type(given).__name__}") from wrong
    if indices.size == 0:
        raise ValueError(f"{what}: expected at least one sample of the client, got none")
    if indices.ndim != 1 or indices.dtype.kind not in "iu":
        raise ValueError(f"{what}: expected a list of indices, got {indices.dtype} {indices.shape}")
    if indices.min() < 0 or indices.max() >= there:
        given = f"{indices.min()} to {indices.max()}"
        raise ValueError(f"{what}: expected indices from 0 to {there - 1}, got {given}")
    return indices
