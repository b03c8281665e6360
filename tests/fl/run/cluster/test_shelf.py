"""Models by name: on the shelf of a machine, from far, and as bytes."""

import gc
import threading
from types import SimpleNamespace

import pytest
import torch

import sparse_engine as se
from fl.algorithms.tasks import Inputs
from fl.clients.memory import Held
from fl.errors import Diverged
from fl.run.cluster import packing
from fl.run.cluster.far import INITIAL, FarModel, Name, make
from fl.run.cluster.finder import Finder
from fl.run.cluster.keeper import Keeper
from fl.run.cluster.packing import Told
from fl.run.cluster.shelf import Shelf


def model(seed):
    torch.manual_seed(seed)
    return se.compress(se.sparsify(torch.nn.Sequential(torch.nn.Linear(20, 50)), density=0.3, seed=seed))


def same(a, b):
    return all(torch.equal(x, b.tensors()[name]) for name, x in a.tensors().items())


@pytest.fixture
def first():
    return model(0)


def test_bytes_are_exact(first):
    for one in (first, first.bitmap):
        again = packing.decoded(packing.encoded(one, Name(1, 1)), first.layout)
        words = again.words if one is first.bitmap else again.bitmap.words
        assert torch.equal(words, first.bitmap.words)
    assert same(packing.decoded(packing.encoded(first, Name(1, 1)), first.layout), first)


def test_what_is_no_number_does_not_travel(first):
    first.values[3] = float("nan")
    with pytest.raises(Diverged, match="cannot cross machines"):
        packing.encoded(first, Name(1, 7))


def test_names(first):
    shelf, fresh = Shelf(3, first, 1 << 20), {}
    own = model(1)
    assert shelf.named(first, fresh) == INITIAL and not fresh
    assert shelf.named(own, fresh) == shelf.named(own, {}) == Name(3, 1)
    assert fresh == {Name(3, 1): own} == shelf.own
    assert shelf.here(Name(3, 1)) is own and shelf.here(INITIAL) is first and shelf.here(Name(3, 2)) is None
    shelf.forget([(3, 1)])
    assert shelf.here(Name(3, 1)) is None


def test_what_others_made_takes_no_more_than_it_may(first):
    blob = packing.encoded(first, INITIAL)
    shelf = Shelf(1, first, 2 * len(blob[1]))
    for i in range(4):
        shelf.see(Name(2, i), blob)
        shelf.here(Name(2, 0))
    kept = [i for i in range(4) if shelf.here(Name(2, i)) is not None]
    assert kept == [0, 3]  # what was asked for last
    assert shelf.most_seen == 2 * len(blob[1]) and shelf.fetched == 4
    shelf.forget([(2, 0), (2, 3)])
    shelf.see(Name(2, 9), blob)
    assert shelf.most_seen == 2 * len(blob[1])  # what is forgotten does not count


@pytest.fixture
def finder(first, monkeypatch):
    """On a machine whose neighbour, 2, has left models 0 to 3 at its keeper, which counts."""
    keeper, asked = Keeper(), []
    keeper.keep({(2, i): packing.encoded(model(i), Name(2, i)) for i in range(4)})

    def give(names):
        asked.extend(names)
        return keeper.give(names)

    calls = SimpleNamespace(give=SimpleNamespace(remote=give), sizes=SimpleNamespace(remote=keeper.sizes))
    monkeypatch.setattr("fl.run.cluster.exchange.answer", lambda found: found)
    made = Finder(Shelf(1, first, 1 << 30), {}, {2: calls})
    made.asked = asked
    return made


def told(i, kind="model"):
    return Told(kind, Name(2, i), model(i).bitmap.stored)


def test_far_models_say_what_they_store_without_moving(finder):
    far = finder.found(told(1))
    near = model(1)
    assert far.bitmap.stored == near.bitmap.stored and far.density == near.density
    assert finder.found(told(1, "mask of model")).nnz == near.bitmap.nnz
    assert finder.found(told(1)) is far  # one object, as it was before it was sent
    assert not finder.asked
    assert same(far, near) and finder.asked == [(2, 1)]


def test_neighbours_are_fetched_once_for_all_clients(finder, monkeypatch):
    monkeypatch.setattr("fl.run.cluster.exchange.PIECE", 1)  # a call each
    sent = [SimpleNamespace(sent=SimpleNamespace(model=finder.found(told(i)))) for i in (1, 2, 3)]
    refs = [Held(i, 0, value) for i, value in enumerate(sent)]
    finder.fetch([Inputs(refs[0], refs[1:]), Inputs(refs[1], [refs[0], refs[2]])])
    assert sorted(finder.asked) == [(2, 1), (2, 2), (2, 3)]
    for i, one in zip((1, 2, 3), sent, strict=True):
        assert isinstance(one.sent.model, FarModel) and same(one.sent.model, model(i))
    assert len(finder.asked) == 3


def test_two_threads_fetch_once(finder):
    slow, real = threading.Event(), finder._blobs

    def blobs(names):
        slow.wait(5)
        yield from real(names)

    finder._blobs = blobs
    found = []
    threads = [threading.Thread(target=lambda: found.append(finder._near(Name(2, 0)))) for _ in range(3)]
    for thread in threads:
        thread.start()
    slow.set()
    for thread in threads:
        thread.join(10)
    assert len(found) == 3 and all(one is found[0] for one in found) and finder.asked == [(2, 0)]


def test_pickles_have_names_in_place_of_models(first):
    pytest.importorskip("ray", reason="needs Ray: pip install 'sparsefl[ray]'")
    shelf, fresh = Shelf(1, first, 0), {}
    own = model(1)
    data = packing.pack({"a": own, "b": [own, first], "mask": own.bitmap}, lambda x: shelf.named(x, fresh))
    assert len(data) < 500 and set(fresh.values()) == {own, own.bitmap}
    assert packing.unpack(data, lambda one: shelf.here(one.name)) == {
        "a": own,
        "b": [own, first],
        "mask": own.bitmap,
    }
    far = make("model", Name(1, 1), own.bitmap.stored, first.layout, shelf.here)
    again = packing.unpack(packing.pack([far, far.bitmap], shelf.named), lambda one: one)
    assert [one.kind for one in again] == ["model", "mask of model"] and {one.name for one in again} == {
        (1, 1)
    }
    far.settle()  # from here on it is an object of this process
    named = []
    packing.pack(far, lambda one: named.append(one) or Name(0, 5))
    assert named == [far]


def test_names_go_with_their_models(first):
    shelf = Shelf(1, first, 0)
    own = model(1)
    name = shelf.named(own, {})
    shelf.forget([name])
    del own
    gc.collect()
    assert shelf.named(model(1), {}) == Name(1, 2)  # never used twice
