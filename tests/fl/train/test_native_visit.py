"""Visits in one native call against the same visits by steps: the same bits, the same errors."""

from dataclasses import replace

import pytest
import torch

import sparse_engine as se
from fl.errors import Diverged, Stopped
from fl.run import setup
from fl.train import native_visit
from fl.train.local import Local, Pull
from fl.train.stop import Stop
from fl.train.visit import Move, Prune, Start, Visit
from fl.train.visit_steps import by_steps
from fl.train.worker import Worker

BATCH_NORM = """
import torch
from torch import nn

def make(num_classes=10, in_channels=1, **_):
    return nn.Sequential(
        nn.Conv2d(in_channels, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.Dropout(0.3),
        nn.Flatten(), nn.Linear(6 * 64, 24), nn.ReLU(), nn.Linear(24, num_classes))
"""
VISITS = {
    "plain": {},
    "drift": {"drift": "norm"},
    "squared drift": {"drift": "squared", "move": Move(fraction=0.2)},
    "two fresh batches": {"drift": "norm", "move": Move(fraction=0.3, batches=2)},
    "all samples": {"move": Move(fraction=0.3, batches=1000)},
    "last batch": {"drift": "norm", "move": Move(fraction=0.3, source="last_batch")},
    "nothing moves": {"move": Move(fraction=0.0)},
    "everything moves": {"move": Move(fraction=1.0)},
}
LOCALS = {
    "usual": {},
    "two epochs": {"epochs": 2},
    "no epoch": {"epochs": 0},
    "momentum, clipped": {"momentum": 0.9, "max_norm": 0.5, "weight_decay": 1e-3},
    "uphill": {"rho": 0.05},
    "small batches": {"batch_size": 7},
    "one batch": {"batch_size": 1000},
    "another stream": {"stream": " second"},
}


@pytest.fixture(scope="module")
def make(tiny, tmp_path_factory):
    """A function: a worker of the tiny configuration with changes."""
    (path := tmp_path_factory.mktemp("own") / "nets.py").write_text(BATCH_NORM)

    def worker(*changes, stop=None):
        own = [f"model.name={path}:make" if change == "own" else change for change in changes]
        return Worker(setup.prepare(tiny(*own)), stop)

    return worker


def start(worker, neighbours=3, density=0.4):
    layout = worker.initial.layout
    shapes = dict(zip(layout.names, layout.shapes, strict=True))
    masks = [layout.bitmap_of(se.uniform_masks(shapes, density, seed=s)) for s in range(neighbours + 2)]
    models = []
    for seed, mask in enumerate(masks[: neighbours + 1]):
        model = worker.initial.with_pattern(mask).clone()
        noise = torch.Generator().manual_seed(seed)
        model.values.add_(torch.randn(model.values.shape, generator=noise), alpha=0.05)
        model.rest.add_(torch.rand(model.rest.shape, generator=noise), alpha=0.05)
        models.append(model)
    return Start(models[0], models[1:], masks[-1], masks[0])


def visited(worker, k, t, given, visit):
    """The visit of one client."""
    return worker.visits(t, {k: given}, visit)[k]


def assert_same(worker, visit, given, k=1, t=2):
    ours, theirs = visited(worker, k, t, given, visit), by_steps(worker, k, t, given, visit)
    for name in ("values", "rest", "integers"):
        assert torch.equal(getattr(ours.trained, name), getattr(theirs.trained, name)), name
    assert ours.pruned is ours.trained and ours.trained.bitmap is given.mask
    assert ours.drift == theirs.drift and (ours.drift is None) == (visit.drift is None)
    if visit.move is None:
        assert ours.mask is None
    else:
        assert torch.equal(ours.mask.words, theirs.mask.words)
        assert torch.equal(ours.mask.offsets, theirs.mask.offsets)
    assert replace(ours.report, train_s=0) == replace(theirs.report, train_s=0)
    assert ours.report.train_s > 0
    wanted = len(se.wire.encode(theirs.trained, sender=k, round=t)) if visit.message else None
    assert ours.nbytes == wanted
    return ours


@pytest.mark.parametrize("message", [False, True])
@pytest.mark.parametrize("how", VISITS.values(), ids=VISITS)
def test_every_kind_of_visit(make, how, message):
    worker = make()
    visit = Visit(local=Local.of(worker.setting.training, 2), message=message, **how)
    assert native_visit.possible(visit)
    assert_same(worker, visit, start(worker))


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("how", LOCALS.values(), ids=LOCALS)
def test_every_kind_of_training(make, how, last):
    worker = make()
    move = Move(fraction=0.3, source="last_batch" if last else "fresh")
    visit = Visit(local=Local.of(worker.setting.training, 2, **how), drift="norm", move=move, message=True)
    assert_same(worker, visit, start(worker))


@pytest.mark.parametrize("last", [False, True])
def test_norms_and_dropout(make, last):
    """Growth leaves what batch norms keep alone; masks of dropout are the client's own."""
    worker = make("own")
    move = Move(fraction=0.3, source="last_batch" if last else "fresh")
    visit = Visit(local=Local.of(worker.setting.training, 2), drift="norm", move=move, message=True)
    given = start(worker)
    found = [assert_same(worker, visit, given, k=k, t=t) for k, t in ((0, 0), (1, 0), (1, 1))]
    assert len({one.drift for one in found}) == 3
    assert found[0].trained.integers.tolist() != given.own.integers.tolist()


def test_exempt_weights_travel_among_the_values(make):
    worker = make("model.exempt=['conv1*']")
    visit = Visit(local=Local.of(worker.setting.training, 0), drift="norm", message=True)
    assert_same(worker, visit, start(worker))


def test_a_client_alone_and_without_neighbours(make):
    worker = make()
    visit = Visit(local=Local.of(worker.setting.training, 0), move=Move(fraction=0.1), message=True)
    given = start(worker, neighbours=0)
    first = assert_same(worker, visit, given)
    for k in (0, 2, 3):
        visited(worker, k, 0, start(worker, density=0.2), visit)
    again = assert_same(worker, visit, given)
    assert torch.equal(first.trained.values, again.trained.values)
    assert torch.equal(first.mask.words, again.mask.words)


def test_results_do_not_depend_on_the_threads(make):
    worker, found = make(), []
    visit = Visit(local=Local.of(worker.setting.training, 0), drift="norm", move=Move(fraction=0.2))
    for threads in (1, 2, 3):
        with se.use_threads(threads):
            found.append(visited(worker, 0, 0, start(worker), visit))
    assert all(torch.equal(one.trained.values, found[0].trained.values) for one in found)
    assert all(torch.equal(one.mask.words, found[0].mask.words) for one in found)
    assert len({one.drift for one in found}) == 1


def test_what_goes_by_steps(make):
    worker = make()
    local, given = Local.of(worker.setting.training, 0), start(worker)
    prune = Prune(config=se.PQIConfig(), target_density=0.1)
    pull = replace(local, pull=Pull(given.own, 0.1))
    kinds = [
        Visit(local=local, prune=prune, move=Move(fraction=0.1)),
        Visit(local=local, move=Move(fraction=0.1, grow="random")),
        Visit(local=pull, drift="norm"),
    ]
    for visit in kinds:
        assert not native_visit.possible(visit)
        assert visited(worker, 0, 0, given, visit).nbytes is None
    assert visited(worker, 0, 0, given, kinds[0]).pruned.bitmap.nnz < given.mask.nnz


def test_a_pruned_model_grows_by_scores_on_its_own_pattern(make):
    worker = make()
    prune = Prune(config=se.PQIConfig(), target_density=0.1)
    move = Move(fraction=0.3, source="last_batch")
    done = visited(
        worker, 0, 0, start(worker), Visit(local=Local.of(worker.setting.training, 0), prune=prune, move=move)
    )
    assert done.mask.nnz == done.pruned.bitmap.nnz < done.trained.bitmap.nnz


def test_the_last_batch_costs_less_than_a_fresh_one(make):
    worker = make()
    local, given = Local.of(worker.setting.training, 0), start(worker)
    flop = {
        source: visited(
            worker, 0, 0, given, Visit(local=local, move=Move(fraction=0.1, source=source))
        ).report.flop
        for source in ("fresh", "last_batch")
    }
    plain = visited(worker, 0, 0, given, Visit(local=local)).report.flop
    assert plain < flop["last_batch"] < flop["fresh"]
    costs = worker.setting.costs
    assert flop["last_batch"] == costs.turn(0, given.mask, local, by_last_batch=True)
    assert flop["fresh"] == costs.turn(0, given.mask, local, grow_batches=1)


def test_a_diverged_training_and_a_stop(make):
    stop = Stop()
    worker = make(stop=stop)
    given, local = start(worker), Local.of(worker.setting.training, 0)
    with pytest.raises(Diverged, match="client 1, round 2"):
        visited(worker, 1, 2, given, Visit(local=replace(local, lr=1e38, epochs=3)))
    huge = given.own.with_values(given.own.values * 1e30)
    with pytest.raises(Diverged) as ours:
        visited(worker, 1, 2, Start(huge, [], given.mask), Visit(local=local))
    with pytest.raises(Diverged) as theirs:
        by_steps(worker, 1, 2, Start(huge, [], given.mask), Visit(local=local))
    assert str(ours.value) == str(theirs.value)
    stop.set()
    with pytest.raises(Stopped):
        visited(worker, 1, 2, given, Visit(local=local))


def test_models_of_another_network_are_refused(make):
    worker, other = make(), make("own")
    given = start(worker)
    with pytest.raises(ValueError, match=r"neighbours\[0\]"):
        visited(
            worker,
            0,
            0,
            Start(given.own, [other.initial], given.mask),
            Visit(local=Local.of(worker.setting.training, 0)),
        )


def test_samples_that_are_cropped_and_mirrored(make):
    worker = make()
    moved = Worker(replace(worker.setting, data=replace(worker.setting.data, augment=True)))
    visit = Visit(local=Local.of(worker.setting.training, 0, epochs=2), move=Move(fraction=0.2))
    found = [assert_same(one, visit, start(one)).trained.values for one in (worker, moved)]
    assert not torch.equal(*found)


def test_several_clients_in_one_call_are_those_one_by_one(make):
    worker = make()
    visit = Visit(
        local=Local.of(worker.setting.training, 0), drift="norm", move=Move(fraction=0.2), message=True
    )
    starts = {k: start(worker, density=0.2 + 0.1 * k) for k in (2, 0, 3, 1)}
    together = worker.visits(0, starts, visit)
    assert list(together) == [2, 0, 3, 1]
    for k, given in starts.items():
        alone = visited(worker, k, 0, given, visit)
        assert torch.equal(together[k].trained.values, alone.trained.values)
        assert torch.equal(together[k].mask.words, alone.mask.words)
        assert (together[k].drift, together[k].nbytes) == (alone.drift, alone.nbytes)


def test_the_first_of_several_that_fails_is_told(make):
    worker = make()
    given, visit = start(worker), Visit(local=Local.of(worker.setting.training, 0))
    huge = Start(given.own.with_values(given.own.values * 1e30), [], given.mask)
    with pytest.raises(Diverged, match="client 2, round 0"):
        worker.visits(0, {1: given, 2: huge, 3: huge, 0: given}, visit)
