"""Samples and Partition: who has which samples, however that was decided, and the test sets that follow.

The samples of a class lie in a random order, client k takes its number from where client k - 1 stopped, and
the end is followed by the beginning. So clients share no sample while there are enough, and then all are used
equally often, up to one.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fl.data import shares
from fl.data.dataset import Dataset
from fl.rng import stream

Counts = NDArray[np.int64]
_TEST_SAMPLES = 100


class Samples(NamedTuple):
    """Sample numbers of all clients: those of k are indices[indptr[k] : indptr[k + 1]]."""

    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]

    def of(self, k: int) -> NDArray[np.int32]:
        return self.indices[self.indptr[k] : self.indptr[k + 1]]

    @property
    def sizes(self) -> set[int]:
        """The numbers of samples that clients have."""
        return set(np.diff(self.indptr).tolist())


@dataclass(frozen=True, eq=False)
class Partition:
    """Training and test samples of every client, and how many of each class [clients, classes]."""

    train: Samples
    test: Samples
    train_counts: Counts
    test_counts: Counts

    @property
    def num_clients(self) -> int:
        return len(self.train_counts)

    def tested_by(self, keep: NDArray[np.bool_]) -> "Partition":
        """This one, with test samples of the clients in `keep` alone."""
        sizes = np.diff(self.test.indptr)
        indptr = np.concatenate([[0], np.cumsum(np.where(keep, sizes, 0))]).astype(self.test.indptr.dtype)
        test = Samples(indptr, self.test.indices[np.repeat(keep, sizes)])
        return replace(self, test=test, test_counts=np.where(keep[:, None], self.test_counts, 0))


def with_test(data: Dataset, train: Samples, counts: Counts, wanted: int | None, seed: int) -> Partition:
    """The partition with these training samples, `counts` of each class, and test sets in their class shares.

    `wanted` test samples per client at most; None: the test part divided by the clients, at least 100.
    """
    most = wanted or max(len(data.test) // len(counts), _TEST_SAMPLES)
    test_counts = _test_counts(counts, np.bincount(data.test.labels, minlength=data.num_classes), most)
    test = deal(test_counts, data.test.labels, stream(seed, "partition test"))
    return Partition(train, test, counts, test_counts)


def deal(counts: Counts, labels: NDArray[np.int64], rng: np.random.Generator) -> Samples:
    """counts[k, c] samples of class c for client k, in order of class, from a random order of each class."""
    order = rng.permutation(len(labels)).astype(np.int32)
    order = order[np.argsort(labels[order], kind="stable")]
    size = np.bincount(labels, minlength=counts.shape[1])
    end = np.cumsum(size)  # of each class in `order`
    where = np.flatnonzero(counts)  # (client, class), as one number
    c, n = where % counts.shape[1], counts.reshape(-1)[where]
    first = (np.cumsum(counts, axis=0) - counts).reshape(-1)[where] % np.maximum(size, 1)[c] + (end - size)[c]
    place = np.arange(n.sum()) + np.repeat(first - (np.cumsum(n) - n), n)
    place -= np.repeat(size[c], n) * (place >= np.repeat(end[c], n))
    return Samples(np.concatenate([[0], np.cumsum(counts.sum(1))]), order[place])


def class_counts(samples: Samples, labels: NDArray[np.int64], num_classes: int) -> Counts:
    """[clients, classes]: how many samples of each class every client has."""
    num_clients = len(samples.indptr) - 1
    client = np.repeat(np.arange(num_clients), np.diff(samples.indptr))
    flat = np.bincount(client * num_classes + labels[samples.indices], minlength=num_clients * num_classes)
    return flat.reshape(num_clients, num_classes)


def _test_counts(counts: Counts, stock: Counts, wanted: int) -> Counts:
    """At most `wanted` in the shares of `counts`, as far as `stock` [classes] allows. No stock, no share."""
    share = np.where(stock > 0, counts, 0).astype(np.float64)
    total = share.sum(1, keepdims=True)
    if not total.all():
        k = int(np.flatnonzero(total == 0)[0])
        classes = np.flatnonzero(counts[k]).tolist()
        raise ValueError(
            f"expected test samples for every client, got none for client {k}: it trains on the classes "
            f"{classes}, and the test part has no sample of these"
        )
    share /= total
    limit = np.divide(stock, share, out=np.full(share.shape, np.inf), where=share > 0).min(1)
    size = np.minimum(np.floor(limit + 1e-9), wanted).astype(np.int64)
    return shares.rounded(size[:, None] * share, size, stock)
