"""Taking a state apart and putting it together: everything comes back, shared things as one, nothing else."""

import json
import sys
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import pytest
import torch
from helpers import randn

import sparse_engine as se
from fl.clients import plain as store
from fl.clients.base import Clients
from fl.clients.memory import InMemory
from fl.clients.plain import StoreError

LAYOUT = se.Layout(("w",), ((3, 50),))


@dataclass(frozen=True)
class Thing:
    model: Any
    mask: Any = None
    number: Any = None


def a_bitmap(seed=0):
    return LAYOUT.bitmap_of({"w": randn(150, seed).view(3, 50) > 0})


def a_state(seed=0):
    bitmap = a_bitmap(seed)
    return se.Model(
        LAYOUT, bitmap, randn(bitmap.nnz, seed), torch.empty(0), torch.empty(0, dtype=torch.int64)
    )


def there_and_back(value):
    plain, tensors = store.take_apart(value)
    plain = json.loads(json.dumps(plain))
    return store.put_together(plain, {n: x.clone() for n, x in tensors.items()}, {"Thing": Thing}, LAYOUT)


def test_models_masks_and_numbers_come_back():
    number = 0.1 + 0.2
    value = (Thing(a_state(1), a_bitmap(2), number), Thing(None), "text", 3, True, ())
    first, second, *rest = there_and_back(value)
    assert torch.equal(first.model.values, value[0].model.values)
    assert torch.equal(first.model.bitmap.words, value[0].model.bitmap.words)
    assert torch.equal(first.mask.words, value[0].mask.words) and first.mask.nnz == value[0].mask.nnz
    assert first.number == number and second == Thing(None) and rest == ["text", 3, True, ()]


def test_what_is_shared_is_stored_once_and_comes_back_shared():
    mask = a_bitmap()
    value = tuple(Thing(a_state(k), mask) for k in range(3))
    _, tensors = store.take_apart(value)
    assert sum(name.endswith("/words") for name in tensors) == 1
    again = there_and_back(value)
    assert again[0].mask is again[1].mask is again[2].mask


@pytest.mark.parametrize("value", [[1], {"a": 1}, torch.zeros(1), object(), Thing, Thing([1])])
def test_other_things_are_refused(value):
    with pytest.raises(TypeError, match="expected models, masks, numbers"):
        store.take_apart(value)


@pytest.mark.parametrize(
    ("plain", "message"),
    [
        ({"type": "os.system", "fields": {}}, "expected a stored value of the types"),
        ({"type": "Thing", "fields": {"model": 1, "more": 2}}, "expected the fields of Thing, got"),
        ({"type": "Thing", "fields": {}}, "expected the fields of Thing"),
        ({"state": "7"}, "expected a tensor 7/bitmap, got none"),
        ({"bitmap": "0"}, "expected a tensor 0/words, got none"),
        ([1, 2], "expected a stored value"),
        ({"items": 3}, "expected a stored value"),
    ],
)
def test_what_is_not_ours_is_refused(plain, message):
    _, tensors = store.take_apart(a_state())
    with pytest.raises(StoreError, match=message):
        store.put_together(plain, tensors, {"Thing": Thing}, LAYOUT)


@dataclass(frozen=True)
class One:
    model: se.Model
    drift: float | None = None
    pair: tuple[int, str] = (1, "a")


@dataclass(frozen=True)
class All:
    ones: tuple[One, ...]
    mask: se.Bitmap | None = None


def test_a_state_is_as_its_hints_say():
    good = One(a_state(), 1, (2, "b"))  # an int is a float
    store.check(All((good, One(a_state()))), All, num_clients=2)
    for bad, message in [
        (All((good,)), "state.ones: expected 2 items, got 1"),
        (All((good, None)), r"state.ones.1.: expected One, got None"),
        (All((good, One(a_bitmap()))), r"state.ones.1..model: expected Model"),
        (All((good, One(a_state(), True))), r"drift: expected float or NoneType, got True"),
        (All((good, One(a_state(), 1.0, (1,)))), r"pair: expected 2 items, got 1"),
        (All((good, One(a_state(), 1.0, (1, 2)))), r"pair.1.: expected str, got 2"),
        (All((good, good), a_state()), "mask: expected Bitmap or NoneType"),
        (good, "state: expected All, got"),
    ]:
        with pytest.raises(StoreError, match=message):
            store.check(bad, All, num_clients=2)


P = TypeVar("P")


@dataclass(frozen=True)
class Group(Generic[P]):
    members: Clients[P]
    first: P | None = None


def test_clients_come_back_with_their_versions():
    first = InMemory([Thing(a_state(k)) for k in range(3)])
    clients = first.with_({1: Thing(None)}).with_({1: Thing(2), 2: 7})
    again = there_and_back(clients)
    assert [again.ref(k).version for k in range(3)] == [0, 2, 1] and again[1] == Thing(2) and again[2] == 7
    assert torch.equal(again[0].model.values, clients[0].model.values)
    plain, tensors = store.take_apart(clients)
    assert set(store.wanted(plain, LAYOUT)) == set(tensors) and len(tensors) == 4


@pytest.mark.parametrize("versions", [[0], [0, 1, 2], [0, -1], [0, True], [0, 1.0], [0, 1 << 63], None])
def test_versions_that_are_none_are_refused(versions):
    with pytest.raises(StoreError, match="expected versions from 0 on|expected a stored value"):
        store.put_together({"clients": [1, 2], "versions": versions}, {}, {}, LAYOUT)


def test_clients_are_as_the_hint_says():
    good = Group(InMemory([One(a_state()), One(a_state())]))
    store.check(good, Group[One], num_clients=2)
    store.check(good, Group, num_clients=2)  # of anything
    for bad, hint, message in [
        (Group(InMemory([One(a_state())])), Group[One], "state.members: expected 2 items, got 1"),
        (good, Group[int], r"state.members.0.: expected int, got One"),
        (Group(good.members, first=3), Group[One], "state.first: expected One or NoneType, got 3"),
        (Group((1, 2)), Group[int], "state.members: expected Clients"),
    ]:
        with pytest.raises(StoreError, match=message):
            store.check(bad, hint, num_clients=2)


def test_values_nested_too_deeply_are_refused():
    plain = 1
    for _ in range(sys.getrecursionlimit()):  # tools that tests use raise it
        plain = {"items": [plain]}
    with pytest.raises(StoreError, match="nested too deeply"):
        store.put_together(plain, {}, {}, LAYOUT)


def test_tensors_are_known_by_name_and_size_before_they_are_read():
    plain, tensors = store.take_apart((a_state(), a_bitmap(3)))
    wanted = store.wanted(plain, LAYOUT)
    assert set(wanted) == set(tensors)
    for name, tensor in tensors.items():
        assert wanted[name].dtype == tensor.dtype and wanted[name].least <= len(tensor) <= wanted[name].most


def test_a_pattern_that_does_not_fit_is_refused():
    plain, tensors = store.take_apart(a_state())
    with pytest.raises(StoreError, match="model 0: .*packed values"):
        store.put_together(plain, tensors | {"0/values": torch.zeros(3)}, {}, LAYOUT)
    with pytest.raises(StoreError, match="model 0: .*words"):
        store.put_together(plain, tensors, {}, se.Layout(("w",), ((3, 500),)))
