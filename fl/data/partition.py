"""Who has which samples: every client as many as the others, and a test set in the class shares of its own;
or natural clients, the groups of the data, as many as these have (lists.py).

How many of each class is decided first (shares.py; `iid` asks for no class), which ones then (samples.py).
"""

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np

from fl.data import memory, shares
from fl.data.dataset import Dataset
from fl.data.lists import partition_by_groups
from fl.data.oversample import with_copies
from fl.data.samples import Partition, class_counts, deal, with_test
from fl.rng import stream

Kind = Literal["dirichlet", "pathological", "iid", "groups"]
_TABLES = 6  # [clients, classes] of 8 byte that exist at once


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

    `groups` makes one client of each of the `num_clients` largest groups, with all of its samples, or at most
    as many as said (partition_by_groups).

    >>> from fl.data import load
    >>> parts = partition(load("digits"), 10, "pathological", classes_per_client=3)
    >>> [int((counts > 0).sum()) for counts in parts.train_counts]
    [3, 3, 3, 3, 3, 3, 3, 3, 3, 3]
    """
    _check(data, num_clients, kind, alpha, classes_per_client, train_per_client, test_per_client)
    if kind == "groups":
        return partition_by_groups(
            data,
            num_clients,
            train_per_client=train_per_client,
            test_per_client=test_per_client,
            copies=copies,
            seed=seed,
        )
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
        train = deal(counts, labels, rng)
    else:
        per = _per_client(train_per_client, len(labels), num_clients, disjoint)
        if kind == "dirichlet":
            counts = shares.dirichlet(stock, num_clients, alpha, per, disjoint, rng)
            train = deal(counts, labels, rng)
        else:
            train = deal(np.full((num_clients, 1), per), np.zeros_like(labels), rng)
            counts = class_counts(train, labels, num_classes)
    train = train._replace(indices=samples[train.indices])
    return with_test(data, train, counts, test_per_client, seed)


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
