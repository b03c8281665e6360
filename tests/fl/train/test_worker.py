"""A worker: its training is SGD on the mask, sparse and dense kernels agree, and what it saw is reported."""

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import sparse_engine as se
from fl import rng
from fl.data import batches, evaluation_batches
from fl.run import setup
from fl.train.worker import Diverged, Pull, Report, Stopped, Worker, learning_rate


@pytest.fixture(scope="module")
def make(tiny):
    """A function: a worker for the tiny configuration with changes."""
    return lambda *changes, **options: Worker(setup.prepare(tiny(*changes)), **options)


def masked(worker, density=0.4):
    layout = worker.initial.layout
    shapes = dict(zip(layout.names, layout.shapes, strict=True))
    return worker.initial.with_pattern(layout.bitmap_of(se.uniform_masks(shapes, density, seed=1)))


def by_hand(worker, k, start, t, pull=None, rho=0.0, part="", **changes):
    """Masked SGD in plain float64 torch: mask the gradient, decay everything."""
    setting, cfg = worker.setting, worker.setting.training.model_copy(update=changes)
    net = dense(worker, start)
    masks, generator = se.masks(start), rng.stream(setting.seed, f"batches{part}", t, k)
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
    return se.load(se.to_dense(worker._engine.net), state).double().train()


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


@pytest.mark.parametrize("kernels", ["sparse", "dense"])
@pytest.mark.parametrize(
    "changes", [(), ("training.momentum=0.9", "training.max_norm=0.5", "training.epochs=2")]
)
def test_training_is_sgd_on_the_mask(make, kernels, changes):
    worker = make(f"training.kernels={kernels}", "training.lr_decay=0.9", *changes)
    start = masked(worker)
    before = start.clone()
    trained = worker.train(1, start, 3)
    wanted = dict(by_hand(worker, 1, start, 3).named_parameters())
    for name in start.layout.names:
        assert torch.equal(trained.pattern(name).mask(), start.pattern(name).mask())
        assert torch.allclose(trained.tensor(name).to_dense().double(), wanted[name], rtol=1e-3, atol=1e-5)
    for name, x in trained.rest_tensors().items():
        assert torch.allclose(x.double(), wanted[name], rtol=1e-3, atol=1e-5)
    assert torch.equal(start.values, before.values) and torch.equal(start.rest, before.rest)
    assert not torch.equal(trained.values, start.values)


@pytest.mark.parametrize("kernels", ["sparse", "dense"])
def test_ways_of_training(make, kernels):
    worker = make(f"training.kernels={kernels}")
    start = masked(worker)
    other = start.with_values(start.values + 0.1)
    ways = [
        {"pull": Pull(other, 0.5), "epochs": 2, "part": " personal"},
        {"pull": Pull(masked(worker, 0.7), 2.0), "max_norm": 0.5},
        {"rho": 0.2, "momentum": 0.9, "weight_decay": 1e-3},
    ]
    results = [worker.train(1, start, 3, **way) for way in ways]
    for way, trained in zip(ways, results, strict=True):
        assert_is(trained, by_hand(worker, 1, start, 3, **way))
    plain = worker.train(1, start, 3)
    assert all(float((x.values - plain.values).abs().max()) > 1e-3 for x in results)


def test_no_pull_and_no_climb_is_plain_training(make):
    worker = make()
    start = masked(worker)
    plain = worker.train(1, start, 3)
    assert torch.equal(
        worker.train(1, start, 3, pull=Pull(worker.initial, 0.0), rho=0.0).values, plain.values
    )


def test_climbing_costs_a_second_pass_and_untested_training_reports_no_accuracy(make):
    worker = make()
    worker.train(1, worker.initial, 0)
    once = worker.report.flop
    worker.report = Report()
    worker.train(1, worker.initial, 0, rho=0.1, test=False)
    assert worker.report.flop == worker.report.flop_dense == 2 * once
    assert worker.report.accuracy is None and worker.report.accuracy_before is None


def test_unknown_changes_are_refused(make):
    with pytest.raises(ValueError, match=r"expected keys of training, got \['moment'\]"):
        make().train(0, make().initial, 0, moment=0.9)


@pytest.mark.parametrize("kernels", ["sparse", "dense"])
def test_gradient_is_of_the_mean_loss_over_all_samples(make, kernels):
    worker = make(f"training.kernels={kernels}", "training.batch_size=7")
    state = masked(worker)
    found = worker.gradient(1, state, 0)
    setting = worker.setting
    part = setting.data.train.take(setting.partition.train.of(1))
    (x, y), *more = batches(
        setting.data, setting.partition.train.of(1), len(part.labels), rng.stream(0, "any"), augment=False
    )
    assert not more and len(y) % 7
    net = dense(worker, state)
    gradients = masked_gradients(net, se.masks(state), x, y)
    for name, p in net.named_parameters():
        p.data = gradients[name]
    assert_is(found, net, atol=1e-6)
    assert torch.equal(found.bitmap.words, state.bitmap.words)
    assert worker.report.flop == setting.cost.training(state, len(y))


def test_gradient_of_some_samples_differs_by_round(make):
    worker = make()
    first, again, other = (worker.gradient(0, worker.initial, t, samples=5) for t in (0, 0, 1))
    assert torch.equal(first.values, again.values) and not torch.equal(first.values, other.values)


def test_testing_a_model_that_is_not_trained(make):
    worker = make()
    worker.train(1, worker.initial, 0)
    assert worker.test(1, worker.initial) == worker.report.accuracy_before


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
        worker = make(f"training.kernels={kernels}", *model)
        trained = worker.train(0, masked(worker), 0)
        states.append((trained, worker.grow(0, trained, 0, 0.3), worker.report))
    (ours, grown, report), (theirs, theirs_grown, their_report) = states
    assert torch.allclose(ours.values, theirs.values, rtol=1e-2, atol=1e-4)
    assert torch.allclose(ours.rest, theirs.rest, rtol=1e-2, atol=1e-4)
    assert torch.equal(ours.integers, theirs.integers) and ours.integers.sum() > 0
    differing = (grown.words ^ theirs_grown.words).numpy().view(np.uint8)
    assert np.unpackbits(differing).sum() < 0.01 * grown.nnz  # ties in all but name
    assert report.flop == their_report.flop and report.flop_dense == their_report.flop_dense


def test_growth_takes_the_largest_dense_gradients(make):
    worker = make()
    state = masked(worker)
    grown = worker.grow(2, state, 1, 0.3)
    setting = worker.setting
    generator = rng.stream(setting.seed, "grow", 1, 2)
    x, y = next(batches(setting.data, setting.partition.train.of(2), setting.training.batch_size, generator))
    net = se.load(se.to_dense(worker._engine.net), state).train()
    F.cross_entropy(net(x), y).backward()
    grads = {name: p.grad for name, p in net.named_parameters() if name in state.layout.names}
    wanted = se.rigl(state, grads, 0.3).bitmap
    assert torch.equal(grown.words, wanted.words) and grown.nnz == state.bitmap.nnz


def test_more_growth_batches_are_one_larger_draw(make):
    worker = make()
    state = masked(worker)
    grown = [worker.grow(0, state, 0, 0.3, batches=n) for n in (1, 2, 3, 100)]
    assert not torch.equal(grown[0].words, grown[1].words)
    assert torch.equal(grown[2].words, grown[3].words)  # 40 samples are less than 3 batches of 16


def test_report(make):
    worker = make("training.epochs=2")
    start = masked(worker, 0.3)
    trained = worker.train(0, start, 0)
    report, setting = worker.report, worker.setting
    assert report.samples == 40 == len(setting.partition.train.of(0))
    assert report.flop == 3 * 2 * 40 * setting.cost.forward(start)
    assert report.flop_dense == 3 * 2 * 40 * setting.cost.dense_forward > report.flop
    assert report.loss > 0 and report.train_s > 0
    again = Worker(setting)
    again.train(0, trained, 1)
    tested = (
        (start, report.accuracy_before),
        (trained, report.accuracy),
        (trained, again.report.accuracy_before),
    )
    assert report.accuracy > 0
    for state, accuracy in tested:
        net = se.load(se.to_dense(worker._engine.net), state).eval()
        right = [
            (net(x).argmax(1) == y).sum()
            for x, y in evaluation_batches(setting.data, setting.partition.test.of(0), 7)
        ]
        assert accuracy == int(sum(right)) / len(setting.partition.test.of(0))
    worker.grow(0, trained, 0, 0.3)
    assert (
        worker.report.flop == 3 * 2 * 40 * setting.cost.forward(start) + 3 * 16 * setting.cost.dense_forward
    )


def test_no_epochs_changes_nothing(make):
    worker = make("training.epochs=0")
    start = masked(worker)
    trained = worker.train(0, start, 0)
    assert torch.equal(trained.values, start.values) and torch.equal(trained.rest, start.rest)
    assert worker.report.loss is None and worker.report.accuracy == worker.report.accuracy_before


def test_one_worker_serves_clients_in_any_order(make):
    worker, other = make(), make()
    starts = [masked(worker, 0.3), masked(worker, 0.6)]
    first = [worker.train(k, starts[k], 0) for k in (0, 1)]
    second = [other.train(k, starts[k], 0) for k in (1, 0)][::-1]
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
    a = worker.train(0, start, 0)
    torch.rand(5)
    b = worker.train(0, start, 0)
    assert torch.equal(a.values, b.values)
    worker.setting.partition.train.of(1)[:] = worker.setting.partition.train.of(0)
    torch.set_rng_state(state)
    worker.train(0, start, 0)
    assert torch.equal(torch.get_rng_state(), state)  # nobody else's numbers are used up


def test_divergence_is_named(make):
    worker = make("training.lr=1e20")
    with pytest.raises(Diverged, match=r"got (nan|inf) \(client 2, round 4\): lower training.lr"):
        worker.train(2, masked(worker), 4)


def test_stopping(make):
    asked = iter([False, True])
    worker = make(stopped=lambda: next(asked))
    with pytest.raises(Stopped):
        worker.train(0, masked(worker), 0)


def test_learning_rate(tiny):
    cfg = tiny().training
    assert learning_rate(cfg, 0) == 0.1
    assert math.isclose(learning_rate(cfg, 500), 0.1 * 0.998**500)


def test_a_client_without_test_samples_has_no_accuracy(make):
    worker = make()
    test = worker.setting.partition.test
    none = replace(worker.setting.partition, test=test._replace(indptr=np.zeros_like(test.indptr)))
    worker.setting = replace(worker.setting, partition=none)
    worker.train(0, masked(worker), 0)
    assert worker.report.accuracy is None and worker.report.loss is not None


def test_weights_that_left_the_range_are_a_divergence(make):
    """The loss that is checked is that before a step: the last step of a turn needs a check of its own."""
    worker = make("data.train_per_client=16")  # one batch
    with pytest.raises(
        Diverged, match=r"a model of finite numbers, got inf or NaN \(client 1, round 0\): lower"
    ):
        worker.train(1, worker.initial, 0, lr=1e300)


@pytest.mark.parametrize("kernels", ["sparse", "dense"])
def test_gradients_that_left_the_range_are_a_divergence(make, kernels):
    """Selection would meet NaN, and say so in its own words."""
    worker = make(f"training.kernels={kernels}")
    huge = se.combine([masked(worker)], [1e30])
    with pytest.raises(Diverged, match="gradient of .*weight of finite numbers, got inf or NaN"):
        worker.grow(0, huge, 0, 0.3)
