"""Clients in a store: the same values again, to the bit, in memory and in files; nothing is kept for long."""

import gc
import pickle
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from messages import LAYOUT, same, state_of

import sparse_engine as se
from fl.clients import columns, plain
from fl.clients.base import Clients
from fl.clients.memory import Held, InMemory
from fl.clients.store import Store
from fl.errors import StoreError


@dataclass(frozen=True)
class Thing:
    model: se.Model
    mask: se.Bitmap
    again: se.Model
    size: int
    drift: float | None = None
    done: bool = False
    name: str = "x"


def thing(shift=0, drift=None):
    model = state_of(shift)
    return Thing(model, state_of(1 - shift).bitmap, model, 7 + shift, drift)


@pytest.fixture(params=["memory", "files"])
def store(request, tmp_path):
    return Store(LAYOUT, tmp_path if request.param == "files" else None, chunk=1 << 14)


def alike(a, b):
    return (
        same(a.model, b.model)
        and same(a.again, b.again)
        and torch.equal(a.mask.words, b.mask.words)
        and torch.equal(a.mask.offsets, b.mask.offsets)
        and (a.size, a.drift, a.done, a.name) == (b.size, b.drift, b.done, b.name)
    )


def test_values_come_back_and_parts_that_are_one_stay_one(store):
    clients = store([thing(), thing(1, 0.1), thing(0, -0.0)])
    assert isinstance(clients, Clients) and len(clients) == 3
    for k, value in enumerate([thing(), thing(1, 0.1), thing(0, -0.0)]):
        assert alike(clients[k], value) and alike(clients.ref(k).get(), value)
        assert clients[k].again is clients[k].model or same(clients[k].again, clients[k].model)
    assert clients[0].model.bitmap is not clients[0].mask
    assert str(clients[2].drift) == "-0.0"


def test_a_part_that_appears_twice_is_stored_once(store):
    once, twice = store([thing().model]), store.nbytes
    both = store([(thing().model, thing().model.bitmap, thing().model.bitmap)])
    assert store.nbytes == 2 * twice and len(once) == len(both) == 1  # masks of equal bits are one


def test_a_value_that_all_share_is_stored_once(store):
    one = thing()
    clients = store([one] * 1000)
    assert store.nbytes < 2 * one.model.nbytes + 200 and alike(clients[999], one)
    changed = clients.with_({5: thing(1)})
    assert alike(changed[4], one) and alike(changed[5], thing(1)) and alike(clients[5], one)


def test_a_population_does_not_change_and_versions_count(store):
    first = store([thing(), thing()])
    second = first.with_({1: thing(1)})
    third = second.with_((k, thing(1, 2.0)) for k in (1, 0))
    assert [alike(p[1], thing(s, d)) for p, s, d in ((first, 0, None), (second, 1, None), (third, 1, 2.0))]
    assert [[p.ref(k).version for k in (0, 1)] for p in (first, second, third)] == [[0, 0], [0, 1], [1, 2]]
    ref = pickle.loads(pickle.dumps(second.ref(1)))
    assert type(ref) is Held and (ref.client, ref.version) == (1, 1) and alike(ref.get(), thing(1))
    for k in (-1, 2):
        with pytest.raises(IndexError, match=f"expected a client from 0 to 1, got {k}"):
            first.ref(k)
        with pytest.raises(IndexError, match=f"expected a client from 0 to 1, got {k}"):
            first.with_({k: thing()})


def test_what_nobody_has_is_dropped(store):
    clients = store([thing(1)])
    whole = store.nbytes
    for i in range(200):
        clients = clients.with_({0: thing(i % 2)})
        assert store.nbytes <= 3 * whole + 100
    gc.collect()
    store.tidy()
    assert store.nbytes == whole and len(store._arena._chunks) <= 2
    del clients
    store.tidy()
    assert store.nbytes == 0


def test_a_copy_outlives_its_population(store):
    clients = store([thing(1)])
    kept = clients[0]
    clients = clients.with_({0: thing()}).with_({0: thing()})
    store.tidy()
    assert alike(kept, thing(1)) and alike(clients[0], thing())


def test_a_failure_leaves_nothing_behind(store):
    clients = store([thing(), thing(1)])
    before = store.nbytes

    def values():
        yield 0, thing(1)
        raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"):
        clients.with_(values())
    with pytest.raises(TypeError, match="expected models, masks, .* got list"):
        store([thing(), [1]])
    assert store.nbytes == before and alike(clients[0], thing())


def test_a_spent_value_goes_with_its_last_reader(store):
    clients = store([thing(), thing(1), thing()])
    new = clients.with_({0: thing(1)})
    clients.spend(np.array([2, 1, 1]))
    clients.read_by(np.array([0]))
    assert alike(clients[0], thing())
    before = store.nbytes
    clients.read_by(np.array([0, 1]))
    assert store.nbytes < before  # client 0 is in no other population
    for k in (0, 1):
        with pytest.raises(StoreError, match=f"expected client {k} at version 0, got none"):
            clients.ref(k)
    assert alike(clients[2], thing()) and alike(new[0], thing(1)) and alike(new[1], thing(1))


def test_columns_are_those_of_any_population(store):
    values = [thing(), thing(1, 0.5), thing(0, 0.25)]
    ours, theirs = store(values), InMemory(values)
    for path in ("size", "drift", "done"):
        assert columns.column(ours, path) == columns.column(theirs, path)
    for path in ("model", "mask", "again"):
        assert columns.counts(ours, path).tolist() == columns.counts(theirs, path).tolist()


def test_overhead_is_below_200_bytes_a_client():
    store = Store(LAYOUT)
    clients = store(thing(k % 2, 0.5) for k in range(5000))
    parts = sum(x.nbytes for x in (*thing().model.tensors().values(), thing().mask.words))
    per_client = (store.nbytes + store.overhead + clients.slots.nbytes + clients.versions.nbytes) / 5000
    assert per_client < parts + 200


def test_a_store_and_a_tuple_make_the_same_checkpoint(store):
    values = [thing(), thing(1, 0.5)]
    populations = [make(values) for make in (store, InMemory)]  # tensors lie where these are
    ours, theirs = map(plain.take_apart, populations)
    assert ours[0]["versions"] == theirs[0]["versions"] == [0, 0]
    types = {"Thing": Thing}
    for kept, tensors in (ours, theirs):
        again = plain.put_together(kept, tensors, types, LAYOUT, store)
        assert all(alike(a, b) for a, b in zip(again, values, strict=True))


def test_a_full_disk_is_said(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    store = Store(LAYOUT, tmp_path)
    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(StoreError, match="expected room for a client of .* No space left on device"):
        store([thing()])
