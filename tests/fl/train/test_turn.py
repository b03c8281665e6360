"""A turn: training is SGD on the mask, sparse and dense kernels agree, and what was seen is reported."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from fakes import accuracy, trained

import sparse_engine as se
from fl import rng
from fl.data import batches, evaluation_batches
from fl.errors import Diverged, Stopped
from fl.run import setup
from fl.train.dense import Dense
from fl.train.layers import Layers
from fl.train.local import Local, Pull
from fl.train.stop import Stop
from fl.train.worker import Worker


@pytest.fixture(scope="module")
def make(tiny):
    """A function: a worker for the tiny configuration with changes."""
    return lambda *changes, **options: Worker(setup.prepare(tiny(*changes)), **options)


LAYERS = {"sparse": ["training.path=layers"], "dense": ["training.kernels=dense"]}  # what has an engine


def masked(worker, density=0.4):
    layout = worker.initial.layout
    shapes = dict(zip(layout.names, layout.shapes, strict=True))
    return worker.initial.with_pattern(layout.bitmap_of(se.uniform_masks(shapes, density, seed=1)))


def by_hand(worker, k, start, t, pull=None, rho=0.0, stream="", **changes):
    """Masked SGD in plain float64 torch: mask the gradient, decay everything."""
    setting, cfg = worker.setting, worker.setting.training.model_copy(update=changes)
    net = dense(worker, start)
    masks, generator = se.masks(start), rng.stream(setting.seed, f"batches{stream}", t, k)
    towards = dict(dense(worker, pull.model if pull else start).named_parameters())
    u = {name: torch.zeros_like(p) for name, p in net.named_parameters()}
    for _ in range(cfg.epochs):
        for x, y in batches(setting.data, setting.partition.train.of(k), cfg.batch_size, generator):
            grads = masked_gradients(net, masks, x, y)
            if rho:
                uphill, norm = copy.deepcopy(net), torch.sqrt(sum(g.square().sum() for g in grads.values()))
                for name, p in uphill.named_parameters():
                    p.data += rho * grads[name] / norm
                grads = masked_gradients(uphill, masks, x, y)
            norm = torch.sqrt(sum(g.square().sum() for g in grads.values()))
            scale = min(1.0, cfg.max_norm / float(norm)) if cfg.max_norm else 1.0
            with torch.no_grad():
                for name, p in net.named_parameters():
                    u[name].mul_(cfg.momentum).add_(scale * grads[name] + cfg.weight_decay * p)
                    drawn = pull.strength * (p - towards[name]) * masks.get(name, 1) if pull else 0
                    p.sub_(cfg.lr * cfg.lr_decay**t * (u[name] + drawn))
    return net


def dense(worker, state):
    return se.load(copy.deepcopy(worker.setting.network), state).double().train()


def masked_gradients(net, masks, x, y):
    net.zero_grad()
    F.cross_entropy(net(x.double()), y).backward()
    return {n: p.grad * masks[n] if n in masks else p.grad for n, p in net.named_parameters()}


def assert_is(state, net, rtol=1e-3, atol=1e-5):
    wanted = dict(net.named_parameters())
    for name in state.layout.names:
        assert torch.allclose(state.tensor(name).to_dense().double(), wanted[name], rtol=rtol, atol=atol)
    for name, x in state.rest_tensors().items():
        assert torch.allclose(x.double(), wanted[name], rtol=rtol, atol=atol)


@pytest.mark.parametrize(("kernels", "engine"), [("sparse", Layers), ("dense", Dense)])
def test_images_come_in_the_memory_order_that_the_engine_reads(make, monkeypatch, kernels, engine):
    seen = []

    def spied(method):
        def call(self, x, *rest):
            seen.append(x.permute(1, 2, 3, 0) if kernels == "sparse" else x)
            return method(self, x, *rest)

        return call

    for name in ("backward", "predict", "dense_gradients"):
        monkeypatch.setattr(engine, name, spied(getattr(engine, name)))
    worker = make(*LAYERS[kernels])
    turn = worker.turn(0, 0, masked(worker))
    turn.train_and_test(Local.of(worker.setting.training, 0))
    turn.grow(0.3)
    assert len(seen) >= 4 and all(x.is_contiguous() for x in seen)


@pytest.mark.parametrize("kernels", ["sparse", "dense"])
@pytest.mark.parametrize(
    "changes", [(), ("training.momentum=0.9", "training.max_norm=0.5", "training.epochs=2")]
)
def test_training_is_sgd_on_the_mask(make, kernels, changes):
    worker = make(f"training.kernels={kernels}", "training.lr_decay=0.9", *changes)
    start = masked(worker)
    before = start.clone()
    after = trained(worker, 1, 3, start).model
    wanted = dict(by_hand(worker, 1, start, 3).named_parameters())
    for name in start.layout.names:
        assert torch.equal(after.pattern(name).mask(), start.pattern(name).mask())
        assert torch.allclose(after.tensor(name).to_dense().double(), wanted[name], rtol=1e-3, atol=1e-5)
    for name, x in after.rest_tensors().items():
        assert torch.allclose(x.double(), wanted[name], rtol=1e-3, atol=1e-5)
    assert torch.equal(start.values, before.values) and torch.equal(start.rest, before.rest)
    assert not torch.equal(after.values, start.values)


@pytest.mark.parametrize("kernels", ["sparse", "dense"])
def test_ways_of_training(make, kernels):
    worker = make(f"training.kernels={kernels}")
    start = masked(worker)
    other = start.with_values(start.values + 0.1)
    ways = [
        {"pull": Pull(other, 0.5), "epochs": 2, "stream": " personal"},
        {"pull": Pull(masked(worker, 0.7), 2.0), "max_norm": 0.5},
        {"rho": 0.2, "momentum": 0.9, "weight_decay": 1e-3},
    ]
    results = [trained(worker, 1, 3, start, **way).model for way in ways]
    for way, found in zip(ways, results, strict=True):
        assert_is(found, by_hand(worker, 1, start, 3, **way))
    plain = trained(worker, 1, 3, start).model
    assert all(float((x.values - plain.values).abs().max()) > 1e-3 for x in results)


def test_no_pull_and_no_climb_is_plain_training(make):
    worker = make()
    start = masked(worker)
    plain = trained(worker, 1, 3, start).model
    same = trained(worker, 1, 3, start, pull=Pull(worker.initial, 0.0), rho=0.0).model
    assert torch.equal(same.values, plain.values)


def test_climbing_costs_a_second_pass_and_training_alone_reports_no_accuracy(make):
    worker = make()
    once = trained(worker, 1, 0, worker.initial).report
    twice = trained(worker, 1, 0, worker.initial, rho=0.1).report
    assert twice.flop == twice.flop_dense == 2 * once.flop
    assert once.accuracy is None and once.accuracy_before is None


@pytest.mark.parametrize("kernels", ["sparse", "dense"])
def test_gradient_is_of_the_mean_loss_over_all_samples(make, kernels):
    worker = make(f"training.kernels={kernels}", "training.batch_size=7")
    state = masked(worker)
    found, report = worker.turn(1, 0, state).gradient()
    setting = worker.setting
    part = setting.data.train.take(setting.partition.train.of(1))
    plain = replace(setting.data, augment=False)
    (x, y), *more = batches(plain, setting.partition.train.of(1), len(part.labels), rng.stream(0, "any"))
    assert not more and len(y) % 7
    net = dense(worker, state)
    gradients = masked_gradients(net, se.masks(state), x, y)
    for name, p in net.named_parameters():
        p.data = gradients[name]
    assert_is(found, net, atol=1e-6)
    assert torch.equal(found.bitmap.words, state.bitmap.words)
    assert report.flop == setting.cost.training(state.bitmap, len(y))


def test_testing_a_model_that_is_not_trained(make):
    worker = make()
    report = worker.turn(1, 0, worker.initial).train_and_test(Local.of(worker.setting.training, 0))
    assert accuracy(worker, 1, worker.initial) == report.accuracy_before


def test_kernels_agree_on_a_network_with_norms_shortcuts_and_buffers(make):
    model = (
        "data.size=8",
        "model.width=none",
        "model.name=resnet18",
        "model.norm=batch",
        "data.train_per_client=20",
    )
    states = []
    for kernels in ("sparse", "dense"):
        worker = make(*LAYERS[kernels], *model)
        after = trained(worker, 0, 0, masked(worker))
        mask, work = after.turn.grow(0.3)
        states.append((after.model, mask, after.report.plus(work)))
    (ours, grown, report), (theirs, theirs_grown, their_report) = states
    for mine, other in ((ours.values, theirs.values), (ours.rest, theirs.rest)):
        # norms of four samples: weights that differ by a 100,000th at the start are .27 apart in the end
        assert (mine - other).norm() < 0.01 * other.norm()
    assert torch.equal(ours.integers, theirs.integers) and ours.integers.sum() > 0
    differing = (grown.words ^ theirs_grown.words).numpy().view(np.uint8)
    assert np.unpackbits(differing).sum() < 0.02 * grown.nnz  # ties in all but name, each counted twice
    assert report.flop == their_report.flop and report.flop_dense == their_report.flop_dense


def test_growth_takes_the_largest_dense_gradients(make):
    worker = make()
    state = masked(worker)
    grown = worker.turn(2, 1, state).grow(0.3).mask
    setting = worker.setting
    generator = rng.stream(setting.seed, "grow", 1, 2)
    x, y = next(batches(setting.data, setting.partition.train.of(2), setting.training.batch_size, generator))
    net = se.load(copy.deepcopy(worker.setting.network), state).train()
    F.cross_entropy(net(x), y).backward()
    grads = {name: p.grad for name, p in net.named_parameters() if name in state.layout.names}
    wanted = se.rigl(state, grads, 0.3).bitmap
    assert torch.equal(grown.words, wanted.words) and grown.nnz == state.bitmap.nnz


def test_more_growth_batches_are_one_larger_draw(make):
    worker = make()
    state = masked(worker)
    grown = [worker.turn(0, 0, state).grow(0.3, batches=n).mask for n in (1, 2, 3, 100)]
    assert not torch.equal(grown[0].words, grown[1].words)
    assert torch.equal(grown[2].words, grown[3].words)  # 40 samples are less than 3 batches of 16


def test_report(make):
    worker = make("training.epochs=2")
    start, setting = masked(worker, 0.3), worker.setting
    turn = worker.turn(0, 0, start)
    report = turn.train_and_test(Local.of(setting.training, 0))
    after = turn.model()
    assert report.samples == 40 == len(setting.partition.train.of(0)) == worker.num_samples(0)
    assert report.flop == 3 * 2 * 40 * setting.cost.forward(start.bitmap)
    assert report.flop_dense == 3 * 2 * 40 * setting.cost.dense_forward > report.flop
    assert report.loss > 0 and report.train_s > 0
    tested = (
        (start, report.accuracy_before),
        (after, report.accuracy),
        (after, accuracy(Worker(setting), 0, after)),
    )
    assert report.accuracy > 0
    for state, share in tested:
        net = se.load(copy.deepcopy(setting.network), state).eval()
        right = [
            (net(x).argmax(1) == y).sum()
            for x, y in evaluation_batches(setting.data, setting.partition.test.of(0), 7)
        ]
        assert share == int(sum(right)) / len(setting.partition.test.of(0))
    assert turn.grow(0.3).report.flop == 3 * 16 * setting.cost.dense_forward


def test_no_epochs_changes_nothing(make):
    worker = make("training.epochs=0")
    start = masked(worker)
    turn = worker.turn(0, 0, start)
    report = turn.train_and_test(Local.of(worker.setting.training, 0))
    after = turn.model()
    assert torch.equal(after.values, start.values) and torch.equal(after.rest, start.rest)
    assert report.loss is None and report.accuracy == report.accuracy_before


NORMS = (
    "data.size=8",
    "model.width=none",
    "model.name=resnet18",
    "model.norm=batch",
    "data.train_per_client=20",
)


def loads_of(worker, monkeypatch):
    """What the worker's engine loads from now on."""
    loads, real = [], type(worker._engine).load
    monkeypatch.setattr(
        type(worker._engine), "load", lambda self, model: (loads.append(model), real(self, model))[1]
    )
    return loads


@pytest.mark.parametrize("kernels", ["sparse", "dense"])
def test_a_turn_without_pruning_loads_once(make, monkeypatch, kernels):
    """What was trained is grown where it is; a model that comes from outside is loaded."""
    worker = make(*LAYERS[kernels])
    loads, start = loads_of(worker, monkeypatch), masked(worker)
    turn = worker.turn(0, 0, start)
    assert loads == [] and turn.model() is start  # until something is done with it
    turn.train_and_test(Local.of(worker.setting.training, 0))
    after = turn.model()
    assert turn.model() is after
    turn.load(after)
    turn.grow(0.3)
    assert [one is start for one in loads] == [True]
    turn.load(start)
    turn.test()
    assert [one is start for one in loads] == [True, True]


@pytest.mark.parametrize("kernels", ["sparse", "dense"])
def test_growth_and_gradients_leave_the_model_as_it_was(make, kernels):
    """Also what norms keep, which moves in every pass in training."""
    worker = make(f"training.kernels={kernels}", *NORMS)
    local = Local.of(worker.setting.training, 0)
    turns = [worker.turn(0, 0, masked(worker)) for _ in range(3)]
    found = []
    for turn, disturb in zip(
        turns, (lambda _: None, lambda x: x.grow(0.3), lambda x: x.gradient()), strict=True
    ):
        turn.train(local)
        disturb(turn)
        share = turn.test()
        turn.train(local)
        found.append((share, turn.model()))
    for share, model in found[1:]:
        assert share == found[0][0] and torch.equal(model.values, found[0][1].values)
        assert torch.equal(model.rest, found[0][1].rest) and torch.equal(model.integers, found[0][1].integers)


def test_one_worker_serves_clients_in_any_order(make):
    worker, other = make(), make()
    starts = [masked(worker, 0.3), masked(worker, 0.6)]
    first = [trained(worker, k, 0, starts[k]).model for k in (0, 1)]
    second = [trained(other, k, 0, starts[k]).model for k in (1, 0)][::-1]
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a.values, b.values) and torch.equal(a.rest, b.rest)


def test_dropout_is_drawn_from_the_clients_stream(make):
    alexnet = (
        "model.name=alexnet",
        "model.width=none",
        "data.size=16",
        "training.lr=0.01",
        "data.train_per_client=16",
    )
    worker = make(*alexnet)
    start = masked(worker, 0.05)
    state = torch.get_rng_state()
    a = trained(worker, 0, 0, start).model
    torch.rand(5)
    b = trained(worker, 0, 0, start).model
    assert torch.equal(a.values, b.values)
    worker.setting.partition.train.of(1)[:] = worker.setting.partition.train.of(0)
    torch.set_rng_state(state)
    trained(worker, 0, 0, start)
    assert torch.equal(torch.get_rng_state(), state)  # nobody else's numbers are used up


@pytest.mark.parametrize("path", ["program", "layers"])
def test_divergence_is_named(make, path):
    worker = make("training.lr=1e20", f"training.path={path}")
    with pytest.raises(Diverged, match=r"got (nan|inf) \(client 2, round 4, batch 1\): lower training.lr"):
        trained(worker, 2, 4, masked(worker))


@pytest.mark.parametrize("path", ["program", "layers"])
def test_stopping(make, path):
    stop = Stop()
    stop.set()
    worker = make(f"training.path={path}", stop=stop)
    with pytest.raises(Stopped):
        trained(worker, 0, 0, masked(worker))


def test_a_client_without_test_samples_has_no_accuracy(make):
    worker = make()
    test = worker.setting.partition.test
    none = replace(worker.setting.partition, test=test._replace(indptr=np.zeros_like(test.indptr)))
    worker.setting = replace(worker.setting, partition=none)
    report = worker.turn(0, 0, masked(worker)).train_and_test(Local.of(worker.setting.training, 0))
    assert report.accuracy is None and report.loss is not None


def test_weights_that_left_the_range_are_a_divergence(make):
    """The loss that is checked is that before a step: the last step of a turn needs a check of its own."""
    worker = make("data.train_per_client=16")  # one batch
    with pytest.raises(
        Diverged, match=r"a model of finite numbers, got inf or NaN \(client 1, round 0\): lower"
    ):
        trained(worker, 1, 0, worker.initial, lr=1e300)


@pytest.mark.parametrize("kernels", ["sparse", "dense"])
def test_gradients_that_left_the_range_are_a_divergence(make, kernels):
    """Selection would meet NaN, and say so in its own words."""
    worker = make(f"training.kernels={kernels}")
    huge = se.combine([masked(worker)], [1e30])
    with pytest.raises(Diverged, match="gradient of .*weight of finite numbers, got inf or NaN"):
        worker.turn(0, 0, huge).grow(0.3)
