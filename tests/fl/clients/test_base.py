"""Algorithms use nothing but the interface: with clients that are kept as bytes, behind addresses, and tasks
that are sent as bytes, every one of them gives the same bits."""

import pickle
from dataclasses import dataclass, replace
from itertools import count

import by_hand
import central
import pytest
from fakes import Serial

from fl import algorithms
from fl.clients.base import Clients, pairs_of
from fl.clients.memory import InMemory
from fl.config import Messages

GAINS = [[1, 2, 3, 4, 5], [-1, 0, 1, 0, 2], [3, 3, 0, 0, 1], [0, 1, 0, 2, 0]]
SERVED = {"fedavg", "feddst", "ditto"}


class Shelf(dict):
    """Bytes by address. As a class of its own it is never pickled by mistake."""

    def __reduce__(self):
        raise AssertionError("expected an address on its way, got what is there")


SHELF, NUMBERS = Shelf(), count()


@dataclass(frozen=True)
class Address:
    """A clients.Ref that says where the value is, and no more."""

    population: int
    client: int
    version: int

    def get(self):
        return pickle.loads(SHELF[self])


class Elsewhere:
    """clients.Clients kept as bytes: whoever reads a value gets a copy of its own."""

    def __init__(self, values):
        self.addresses, population = [], next(NUMBERS)
        for k, value in enumerate(values):
            self.addresses.append(self._put(Address(population, k, 0), value))

    @staticmethod
    def _put(address, value):
        assert address not in SHELF
        SHELF[address] = pickle.dumps(value)
        return address

    def __len__(self):
        return len(self.addresses)

    def __getitem__(self, k):
        return self.addresses[k].get()

    def __iter__(self):
        return (address.get() for address in self.addresses)

    def __reduce__(self):
        raise AssertionError("expected references in a task, got the population")

    def ref(self, k):
        return self.addresses[k]

    def with_(self, changed):
        changed, found = dict(pairs_of(changed)), Elsewhere([])
        found.addresses = [
            self._put(replace(old, version=old.version + 1), changed[k]) if k in changed else old
            for k, old in enumerate(self.addresses)
        ]
        return found


class Sending(Serial):
    """Tasks and results travel as bytes."""

    def run(self, work, tasks):
        sent = {k: pickle.loads(pickle.dumps(task)) for k, task in tasks.items()}
        yield from pickle.loads(pickle.dumps([*super().run(work, sent)]))


def world(name, algorithm):
    """Lossy messages, so that a client keeps what its last one lost."""
    cfg = algorithm.Config(**({"clients_per_round": 2} if name in SERVED else {}))
    messages = Messages(values="q8")
    if name in SERVED:
        return central.env(cfg, central.model(by_hand.W0), GAINS, [1, 2, 3, 4], messages=messages)
    found = by_hand.env(cfg, GAINS, kind="ring", redraw=False, messages=messages)
    if name == "beer":
        found.executor.trainer.gradient = lambda k, model: model
    return found


def outcome(rounds):
    """Everything that the loop reads of rounds, but for schedules."""
    models = [{name: x.tolist() for name, x in m.tensors().items()} for r in rounds for m in r.models]
    return models, [(r.traffic.up.tolist(), r.traffic.down.tolist(), r.facts, r.columns) for r in rounds]


@pytest.mark.parametrize("name", algorithms.shipped())
def test_an_algorithm_does_not_know_where_its_clients_are(name):
    algorithm = algorithms.shipped()[name]
    here, there = world(name, algorithm), world(name, algorithm)
    there = replace(there, executor=Sending(there.executor.trainer), store=Elsewhere)
    ours, theirs = by_hand.rounds(algorithm, here, 3), by_hand.rounds(algorithm, there, 3)
    assert outcome(ours) == outcome(theirs)
    field = "personal" if name == "ditto" else "uploads" if name in SERVED else "clients"
    kept = [getattr(done[-1].state, field) for done in (ours, theirs)]
    assert [type(clients) for clients in kept] == [InMemory, Elsewhere]
    trained = [sum(k in r.reports for r in ours) for k in range(4)]
    for clients in kept:
        assert isinstance(clients, Clients)
        assert [clients.ref(k).version for k in range(4)] == trained  # those that trained, and no others
