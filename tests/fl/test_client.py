"""A worker: its training is SGD on the mask, sparse and dense kernels agree, and what it saw is reported."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import sparse_engine as se
from fl import federation, rng
from fl.client import Diverged, Stopped, Worker, learning_rate
from fl.data import batches, evaluation_batches


@pytest.fixture(scope="module")
def make(tiny):
    """A function: a worker for the tiny configuration with changes."""
    return lambda *changes, **options: Worker(federation.prepare(tiny(*changes)), **options)


def masked(worker, density=0.4):
    layout = worker.initial.layout
    shapes = dict(zip(layout.names, layout.shapes, strict=True))
    return worker.initial.with_pattern(layout.bitmap_of(se.uniform_masks(shapes, density, seed=1)))


def by_hand(worker, k, start, t):
    """Masked SGD in plain float64 torch: mask the gradient, decay everything."""
    setting, cfg = worker.setting, worker.setting.training
    net = se.load(se.to_dense(worker._engine.net), start).double().train()
    masks, generator = se.masks(start), rng.stream(setting.seed, "batches", t, k)
    u = {name: torch.zeros_like(p) for name, p in net.named_parameters()}
    for _ in range(cfg.epochs):
        for x, y in batches(setting.data, setting.partition.train.of(k), cfg.batch_size, generator):
            net.zero_grad()
            F.cross_entropy(net(x.double()), y).backward()
            grads = {n: p.grad * masks[n] if n in masks else p.grad for n, p in net.named_parameters()}
            norm = torch.sqrt(sum(g.square().sum() for g in grads.values()))
            scale = min(1.0, cfg.max_norm / float(norm)) if cfg.max_norm else 1.0
            with torch.no_grad():
                for name, p in net.named_parameters():
                    u[name].mul_(cfg.momentum).add_(scale * grads[name] + cfg.weight_decay * p)
                    p.sub_(cfg.lr * cfg.lr_decay**t * u[name])
    return net


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
