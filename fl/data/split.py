"""A training and a test part of a set that has none: the same for everybody, every class in its share.

Samples of one group (images of one lesion) stay together, so that no test image has a sibling in training,
unless groups are clients. Group by group, in random order, a class gives to the test part until that has
`share` of the class's samples.
"""

import numpy as np
from numpy.typing import NDArray

from fl.rng import stream


def split(
    labels: NDArray[np.int64],
    groups: NDArray | None = None,
    share: float = 0.2,
    *,
    natural: bool = False,
    seed: int = 0,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Training and test samples, as ascending indices. A group counts for the class of its first sample.

    `natural`: groups are clients, and each has both: `share` of its own samples, at least one, are for tests
    (those of a group with one sample are for training).
    """
    if not 0 < share < 1:
        raise ValueError(f"expected a share of test samples between 0 and 1, got {share}")
    natural = natural and groups is not None
    if groups is None:
        groups = np.arange(len(labels))
    if groups.shape != labels.shape:
        raise ValueError(f"expected one group per label, got groups {groups.shape}, labels {labels.shape}")
    if natural:
        return _within(groups, share, seed)
    _, first, group, size = np.unique(groups, return_index=True, return_inverse=True, return_counts=True)
    label = labels[first]
    order = np.lexsort((stream(seed, "split").random(len(first)), label))  # by class, then at random
    before = np.cumsum(size[order]) - size[order]  # samples before the group: in all, and in its class
    starts = np.searchsorted(label[order], label[order])
    before -= before[starts]
    total = np.bincount(label, weights=size)[label[order]]
    in_test = np.empty(len(first), dtype=bool)
    in_test[order] = before + size[order] / 2 <= share * total
    return np.flatnonzero(~in_test[group]), np.flatnonzero(in_test[group])


def _within(groups: NDArray, share: float, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Split every group by itself, at random."""
    _, group, size = np.unique(groups, return_inverse=True, return_counts=True)
    order = np.lexsort((stream(seed, "split").random(len(group)), group))  # by group, then at random
    place = np.arange(len(group)) - np.repeat(np.cumsum(size) - size, size)  # of a sample in its group
    tests = np.minimum(np.maximum(np.rint(share * size), 1), size - 1)
    in_test = np.empty(len(group), dtype=bool)
    in_test[order] = place < np.repeat(tests, size)
    return np.flatnonzero(~in_test), np.flatnonzero(in_test)
