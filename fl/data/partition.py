"""Who has which samples: every client as many as the others, and a test set in the class shares of its own.

How many of each class is decided first (shares.py; `iid` asks for no class). Then the samples of a class lie
in a random order, client k takes its number from where client k - 1 stopped, and the end is followed by the
beginning. So clients share no sample while there are enough, and then all are used equally often, up to one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from fl.data import memory, shares
from fl.data.dataset import Dataset
from fl.data.oversample import with_copies
from fl.rng import stream

Kind = Literal["dirichlet", "pathological", "iid"]
Counts = NDArray[np.int64]
_TEST_SAMPLES = 100
_TABLES = 6  # [clients, classes] of 8 byte that exist at once


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


def partition(
    data: Dataset,
    num_clients: int,
    kind: Kind = "dirichlet",
    *,
    alpha: float = 0.3,
    classes_per_client: int = 2,
    train_per_client: int | None = None,
    test_per_client: int | None = None,
    disjoint: bool = True,
    copies: Sequence[int] | None = None,
    seed: int = 0,
) -> Partition:
    """Divide `data` among the clients; the same for the same arguments.

    `train_per_client`: by default as many as there are for everybody; a few samples may be left over.
    `disjoint=False` lets clients share training samples, but none has one twice; it needs `train_per_client`.
    `copies` repeats training samples of rare classes first (oversample.py); copies count as further samples.

    A test set has at most `test_per_client` samples (default: the test part divided by the clients, at least
    100), in the class shares of the client's training samples; fewer where that would need more of a class
    than there are. Test sets are disjoint while the samples of a class last. For many clients they cannot be,
    and need not: nobody trains on them.
    """
    _check(data, num_clients, kind, alpha, classes_per_client, train_per_client, test_per_client)
    if not disjoint and train_per_client is None:
        raise ValueError("expected train_per_client with disjoint = false, got none")
    classes = 1 if kind == "iid" else data.num_classes
    memory.check(_TABLES * 8 * num_clients * classes, f"the class shares of {num_clients:,} clients")
    num_classes = data.num_classes
    samples = with_copies(data.train.labels, num_classes, copies)
    labels = data.train.labels[samples]
    stock = np.bincount(labels, minlength=num_classes)
    rng = stream(seed, f"partition {kind}")
    if kind == "pathological":
        counts = shares.pathological(stock, num_clients, classes_per_client, train_per_client, disjoint, rng)
        train = _deal(counts, labels, rng)
    else:
        per = _per_client(train_per_client, len(labels), num_clients, disjoint)
        if kind == "dirichlet":
            counts = shares.dirichlet(stock, num_clients, alpha, per, disjoint, rng)
            train = _deal(counts, labels, rng)
        else:
            train = _deal(np.full((num_clients, 1), per), np.zeros_like(labels), rng)
            counts = _class_counts(train, labels, num_classes)
    wanted = test_per_client or max(len(data.test) // num_clients, _TEST_SAMPLES)
    test_counts = _test_counts(counts, np.bincount(data.test.labels, minlength=num_classes), wanted)
    test = _deal(test_counts, data.test.labels, stream(seed, "partition test"))
    train = train._replace(indices=samples[train.indices])
    return Partition(train, test, counts, test_counts)


def _per_client(wanted: int | None, samples: int, num_clients: int, disjoint: bool) -> int:
    possible = samples // num_clients if disjoint else samples
    hint = "; or let clients share samples: disjoint = false, with train_per_client" if disjoint else ""
    if possible < 1:
        raise ValueError(
            f"expected at most {samples:,} clients to divide {samples:,} training samples among, got "
            f"num_clients = {num_clients:,}{hint}"
        )
    wanted = possible if wanted is None else wanted
    if wanted > possible:
        who = f"{samples:,} for {num_clients:,} clients" if disjoint else f"all of the {samples:,}"
        raise ValueError(
            f"expected at most {possible:,} training samples per client ({who}), got train_per_client = "
            f"{wanted:,}{hint}"
        )
    return wanted


def _deal(counts: Counts, labels: NDArray[np.int64], rng: np.random.Generator) -> Samples:
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


def _class_counts(samples: Samples, labels: NDArray[np.int64], num_classes: int) -> Counts:
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


def _check(
    data: Dataset,
    num_clients: int,
    kind: str,
    alpha: float,
    classes_per_client: int,
    train_per_client: int | None,
    test_per_client: int | None,
) -> None:
    if kind not in get_args(Kind):
        raise ValueError(f"expected a kind of partition out of {list(get_args(Kind))}, got {kind!r}")
    if not 1e-9 <= alpha < np.inf:
        raise ValueError(f"expected alpha from 1e-9 on, got {alpha}")
    if kind == "pathological" and not 1 <= classes_per_client <= data.num_classes:
        raise ValueError(f"expected 1 to {data.num_classes} classes per client, got {classes_per_client}")
    positive = {
        "num_clients": num_clients,
        "train_per_client": train_per_client,
        "test_per_client": test_per_client,
    }
    for name, value in positive.items():
        if value is not None and value < 1:
            raise ValueError(f"expected {name} of at least 1, got {value}")
    if test_per_client is not None and test_per_client > len(data.test):
        raise ValueError(f"expected test_per_client up to {len(data.test):,}, got {test_per_client:,}")
