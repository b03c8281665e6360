"""A training and a test part of a set that has none: the same for everybody, every class in its share.

Samples of one group (images of one lesion) stay together, so that no test image has a sibling in training.
Group by group, in random order, a class gives to the test part until that has `share` of the class's samples.
"""

import numpy as np
from numpy.typing import NDArray

from fl.rng import stream


def split(
    labels: NDArray[np.int64], groups: NDArray | None = None, share: float = 0.2
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Training and test samples, as ascending indices. A group counts for the class of its first sample."""
    if not 0 < share < 1:
        raise ValueError(f"expected a share of test samples between 0 and 1, got {share}")
    if groups is None:
        groups = np.arange(len(labels))
    if groups.shape != labels.shape:
        raise ValueError(f"expected one group per label, got groups {groups.shape}, labels {labels.shape}")
    _, first, group, size = np.unique(groups, return_index=True, return_inverse=True, return_counts=True)
    label = labels[first]
    order = np.lexsort((stream(0, "split").random(len(first)), label))  # by class, then at random
    before = np.cumsum(size[order]) - size[order]  # samples before the group: in all, and in its class
    starts = np.searchsorted(label[order], label[order])
    before -= before[starts]
    total = np.bincount(label, weights=size)[label[order]]
    in_test = np.empty(len(first), dtype=bool)
    in_test[order] = before + size[order] / 2 <= share * total
    return np.flatnonzero(~in_test[group]), np.flatnonzero(in_test[group])
