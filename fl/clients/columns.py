"""Parts of clients without the rest of them: from the table of a store, or client by client from any
population."""

from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

import sparse_engine as se
from fl.clients.base import Population, Ref
from fl.clients.stored import Lying, Stored
from fl.clients.view import View

Counts = NDArray[np.int64]


def column(clients: Population[Any], path: str) -> list[Any]:
    """The number at a path ("sent.nbytes") of every client; None where there is none."""
    if isinstance(clients, Stored):
        return clients.column(path)
    return [attrgetter(path)(client) for client in clients]


def part(ref: Ref[Any], path: str) -> Any:
    """What a reference has at a path ("sent.model")."""
    return ref.part(path) if isinstance(ref, Lying) else attrgetter(path)(ref.get())


def counts(clients: Population[Any], path: str = "") -> Counts:
    """[clients, weights]: stored entries of the mask or model at a path ("model"), weight by weight. "": the
    population is of models or masks."""
    if isinstance(clients, View) and not path and clients.path is not None:
        return counts(clients.clients, clients.path)
    if isinstance(clients, Stored):
        return clients.counts(path)
    get = attrgetter(path) if path else lambda client: client
    found = [_stored(get(client)) for client in clients]
    return np.array(found, np.int64).reshape(len(found), -1)


def _stored(value: se.Model | se.Bitmap) -> tuple[int, ...]:
    return (value.bitmap if isinstance(value, se.Model) else value).stored
