"""Turns as programs against the same turns layer by layer: decisions, numbers, bits, stops."""

import copy
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from fakes import trained

import sparse_engine as se
from fl.data import batches
from fl.errors import Diverged, Stopped
from fl.run import runs, setup
from fl.run.rundir import CLIENTS, METRICS, read_jsonl
from fl.run.runs import Options
from fl.train.local import Local, Pull
from fl.train.program import ProgramTurn
from fl.train.stop import Stop
from fl.train.turn import EngineTurn
from fl.train.worker import Worker

ALGORITHMS = ("da_dpfl", "dispfl", "dfedavgm", "dfedsam", "gossipfl", "beer", "fedavg", "feddst", "ditto")
DECISIONS = (
    "round",
    "density_mean",
    "flop_round",
    "bytes_total",
    "bytes_busiest",
    "votes",
    "pruned",
    "depth",
)
OF_CLIENTS = "client density bytes_up bytes_down vote wave waited_for samples".split()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_decides_the_same_on_both_paths(tiny, tmp_path, algorithm):
    lines = {}
    for path in ("program", "layers"):
        runs.start(
            tiny(f"algorithm={algorithm}", "num_rounds=3", f"training.path={path}"),
            tmp_path / path,
            Options(workers=1),
        )
        lines[path] = [read_jsonl(tmp_path / path / name) for name in (METRICS, CLIENTS)]
    for ours, theirs, same in zip(lines["program"], lines["layers"], (DECISIONS, OF_CLIENTS), strict=True):
        assert len(ours) == len(theirs) > 0
        for a, b in zip(ours, theirs, strict=True):
            assert {key: a.get(key) for key in same} == {key: b.get(key) for key in same}
            for key in ("loss", "accuracy_mean", "accuracy"):
                if a.get(key) is not None:
                    assert a[key] == pytest.approx(b[key], rel=1e-3, abs=0.051)  # one of 20 test samples


@pytest.fixture(scope="module")
def make(tiny):
    """A function: workers of the tiny configuration with changes, as a program and layer by layer."""

    def two(*changes, data=None):
        found = []
        for path in ("program", "layers"):
            setting = setup.prepare(tiny(*changes, f"training.path={path}"))
            found.append(Worker(setting if data is None else replace(setting, data=data(setting.data))))
        assert isinstance(found[0].turn(0, 0, found[0].initial), ProgramTurn)
        assert isinstance(found[1].turn(0, 0, found[1].initial), EngineTurn)
        return found

    two.tiny = tiny
    return two


def masked(worker, density=0.4):
    layout = worker.initial.layout
    shapes = dict(zip(layout.names, layout.shapes, strict=True))
    return worker.initial.with_pattern(layout.bitmap_of(se.uniform_masks(shapes, density, seed=1)))


def assert_agree(workers, grow=1, **local):
    """Both train, test, grow and take gradients alike."""
    found = []
    for worker in workers:
        turn = worker.turn(1, 2, masked(worker))
        report = turn.train_and_test(Local.of(worker.setting.training, 2, **local))
        grown = turn.grow(0.3, batches=grow)
        found.append((turn.model(), report, grown, turn.gradient()))
    (ours, a, mask, g), (theirs, b, their_mask, h) = found
    for x, y in ((ours.values, theirs.values), (ours.rest, theirs.rest)):
        assert torch.allclose(x, y, rtol=1e-4, atol=1e-5)
    assert torch.equal(ours.integers, theirs.integers)
    assert torch.allclose(g.g.values, h.g.values, rtol=1e-3, atol=1e-5)
    assert a.loss == pytest.approx(b.loss, rel=1e-5)
    for key in ("accuracy", "accuracy_before", "samples", "flop", "flop_dense"):
        assert getattr(a, key) == getattr(b, key), key
    assert mask.report.flop == their_mask.report.flop and mask.mask.nnz == their_mask.mask.nnz
    differing = np.unpackbits((mask.mask.words ^ their_mask.mask.words).numpy().view(np.uint8)).sum()
    assert differing <= 2
    return ours


def _floats(data):
    parts = (replace(p, x=p.x.astype(np.float32) / 16) for p in (data.train, data.test))
    return replace(data, **dict(zip(("train", "test"), parts, strict=True)), mean=(), std=())


def _noisy(data):
    """Without equal values, among which rounding would decide in a max pool."""
    floats, noise = _floats(data), np.random.default_rng(0)
    parts = (replace(p, x=p.x + noise.random(p.x.shape, np.float32)) for p in (floats.train, floats.test))
    return replace(floats, **dict(zip(("train", "test"), parts, strict=True)))


def _not_contiguous(data):
    def turned(part):
        return replace(part, x=np.ascontiguousarray(part.x.swapaxes(2, 3)).swapaxes(2, 3))

    return replace(data, train=turned(data.train), test=turned(data.test))


CASES = {
    "as it is": {},
    "growth of several batches": {"grow": 3},
    "fewer samples than a batch": {"changes": ["training.batch_size=64"]},
    "a tail of one": {"changes": ["training.batch_size=13"]},
    "epochs and momentum": {"changes": ["training.epochs=3", "training.momentum=0.9"]},
    "uphill, clipped": {"rho": 0.2, "max_norm": 0.5},
    "float features": {"data": _floats},
    "crops and mirrors": {"data": lambda data: replace(data, augment=True)},
    "crops over epochs": {
        "data": lambda data: replace(data, augment=True),
        "changes": ["training.epochs=3", "training.batch_size=7"],
    },
    "samples that are not contiguous": {"data": _not_contiguous},
    "vectors": {"changes": ["model.name=mlp", "model.width=none"]},
}


@pytest.mark.parametrize("name", CASES)
def test_a_turn_is_that_of_layers(make, name):
    case = dict(CASES[name])
    assert_agree(make(*case.pop("changes", []), data=case.pop("data", None)), **case)


def test_a_pull_is_that_of_layers(make):
    workers = make()
    assert_agree(workers, pull=Pull(masked(workers[0], 0.7), 0.5), stream=" personal")


def test_memory_mapped_samples_give_the_same_bits(make, tmp_path):
    def mapped(data):
        np.save(tmp_path / "x.npy", data.train.x)
        return replace(data, train=replace(data.train, x=np.load(tmp_path / "x.npy", mmap_mode="r")))

    models = [trained(worker, 1, 0, masked(worker)).model for worker in (make()[0], make(data=mapped)[0])]
    assert torch.equal(models[0].values, models[1].values)


def test_a_client_alone_has_the_bits_that_it_has_among_others(make):
    worker, alone = make()[0], make()[0]
    starts = [masked(worker, density) for density in (0.2, 0.5, 0.8)]
    among = [trained(worker, k, 1, starts[k], epochs=2) for k in (0, 1, 2)]
    grown = [one.turn.grow(0.3).mask for one in among]
    other = trained(alone, 1, 1, starts[1], epochs=2)
    assert torch.equal(other.model.values, among[1].model.values)
    assert torch.equal(other.model.rest, among[1].model.rest)
    assert torch.equal(other.turn.grow(0.3).mask.words, grown[1].words)


def test_what_a_turn_handed_out_stays_as_it_is(make):
    worker = make()[0]
    start = masked(worker)
    before, local = start.clone(), Local.of(worker.setting.training, 0)
    turn = worker.turn(0, 0, start)
    turn.train(local)
    first = turn.model()
    kept = first.clone()
    turn.train(local)
    assert torch.equal(start.values, before.values) and torch.equal(first.values, kept.values)
    assert turn.model() is not first


def test_a_turn_without_test_samples(make):
    worker = make()[0]
    test = worker.setting.partition.test
    none = replace(worker.setting.partition, test=test._replace(indptr=np.zeros_like(test.indptr)))
    worker.setting = replace(worker.setting, partition=none)
    turn = worker.turn(0, 0, masked(worker))
    report = turn.train_and_test(Local.of(worker.setting.training, 0))
    assert turn.test() is None and report.accuracy is None and report.loss is not None


def test_divergence_in_a_later_epoch_counts_batches_on(make):
    """One batch per epoch: the second of the training is in the second epoch."""
    for worker in make("training.epochs=4", "training.batch_size=40"):
        with pytest.raises(Diverged, match=r"got (nan|inf) \(client 3, round 1, batch 1\)"):
            trained(worker, 3, 1, masked(worker), lr=1e20)


def test_another_thread_stops_a_training_between_batches(tiny):
    stop = Stop()
    worker = Worker(setup.prepare(tiny()), stop)
    timer = threading.Timer(0.3, stop.set)
    timer.start()
    with pytest.raises(Stopped):  # 10,000 epochs would take minutes
        trained(worker, 0, 0, masked(worker), epochs=10_000)
    timer.join()
    stop.clear()
    assert trained(worker, 0, 0, masked(worker)).report.loss > 0


@pytest.mark.parametrize("how", [{}, {"epochs": 2, "batch_size": 7}, {"rho": 0.05}, {"epochs": 0}])
def test_growth_by_the_last_batch_agrees_on_both_paths(make, how):
    found = []
    for worker in (*make(), Worker(setup.prepare(make.tiny("training.kernels=dense")))):
        turn = worker.turn(1, 2, masked(worker))
        local = Local.of(worker.setting.training, 2, **how)
        report = turn.train_and_test(local, scores=True)
        grown = turn.grow_by_scores(0.3)
        assert report.flop + grown.report.flop == worker.setting.costs.turn(
            1, turn.model().bitmap, local, by_last_batch=True
        )
        found.append(grown.mask)
    for other in found[1:]:
        differing = np.unpackbits((found[0].words ^ other.words).numpy().view(np.uint8)).sum()
        assert differing <= 2 and other.nnz == found[0].nnz


def test_scores_are_the_gradient_of_the_last_batch(make):
    """With a step of length 0 the model stays, and autograd on the dense network says what its scores are."""
    worker = make(data=_noisy)[0]
    turn, setting = worker.turn(1, 2, masked(worker)), worker.setting
    samples = setting.partition.train.of(1)
    turn.train_and_test(Local.of(setting.training, 2, lr=0.0, batch_size=len(samples), epochs=1), scores=True)
    net = se.load(copy.deepcopy(setting.network), turn.model()).train()
    x, y = next(batches(setting.data, samples, len(samples), np.random.default_rng(0)))
    torch.nn.functional.cross_entropy(net(x), y).backward()
    weights = dict(net.named_parameters())
    wanted = torch.cat([weights[name].grad.reshape(-1) for name in turn.model().layout.names])
    assert (turn._scores - wanted).norm() < 1e-4 * wanted.norm()
