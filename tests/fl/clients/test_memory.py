"""Clients in memory: what changes, what does not, and how both are addressed."""

import pickle

import numpy as np
import pytest

from fl.clients.memory import Held, InMemory


def versions(clients):
    return [clients.ref(k).version for k in range(len(clients))]


def test_a_population_does_not_change():
    first = InMemory("abc")
    second = first.with_({2: "C", 0: "A"})
    third = second.with_({2: "D"})
    assert ([*first], [*second], [*third]) == (["a", "b", "c"], ["A", "b", "C"], ["A", "b", "D"])
    assert (versions(first), versions(second), versions(third)) == ([0, 0, 0], [1, 0, 1], [1, 0, 2])
    assert [*second.with_({})] == [*second] and versions(second.with_({})) == [1, 0, 1]


def test_values_are_not_copied():
    value = object()
    clients = InMemory([value] * 2).with_({0: 1})
    assert clients[1] is value and clients.ref(1).get() is value


def test_a_reference_is_of_its_population():
    first = InMemory("abc")
    old, new = first.ref(1), first.with_({1: "B"}).ref(1)
    assert (old.client, old.version, old.get()) == (1, 0, "b")
    assert (new.client, new.version, new.get()) == (1, 1, "B")
    assert pickle.loads(pickle.dumps(new)) == new == Held(1, 1, "B")


def test_numbers_of_numpy_are_clients():
    clients = InMemory("abc").with_({np.int64(1): "B"})
    assert clients[np.int32(1)] == "B" and type(clients.ref(np.int64(1)).client) is int


@pytest.mark.parametrize("k", [-1, 3])
def test_others_are_not_there(k):
    clients = InMemory("abc")
    for use in (clients.__getitem__, clients.ref, lambda k: clients.with_({k: "x"})):
        with pytest.raises(IndexError, match=f"expected a client from 0 to 2, got {k}"):
            use(k)


def test_one_version_per_client():
    assert versions(InMemory("ab", [3, 4])) == [3, 4]
    with pytest.raises(ValueError, match="expected a version per client, got 1 of 2 clients"):
        InMemory("ab", [3])


def test_it_says_how_large_it_is():
    assert repr(InMemory("ab").with_({0: "c"})) == "InMemory(2 clients, versions up to 1)"
    assert repr(InMemory([])) == "InMemory(0 clients, versions up to 0)"
