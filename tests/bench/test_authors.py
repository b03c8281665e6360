"""bench authors: our side, the checks and the tables. The authors' code is not here: theirs is by hand."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import sparse_engine as se
from fl.data.dataset import Dataset, Part
from sparsefl.bench import authors, report
from sparsefl.bench.stopwatch import Stopwatch


def data(samples):
    """Images whose class is a bright row."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, samples)
    images = rng.integers(0, 60, (samples, 1, 8, 8), dtype=np.uint8)
    images[np.arange(samples), 0, 2 * labels] += 150
    part = Part(images, labels.astype(np.int64))
    return Dataset("made", part, part, ("a", "b", "c", "d"), (0.2,), (0.3,))


@pytest.fixture
def start():
    torch.manual_seed(0)
    net = se.models.by_name("small_cnn", in_channels=1, num_classes=4, width=8)
    shapes = {name: w.shape for name, w in net.named_parameters() if w.dim() > 1}
    masks = [se.erk_masks(shapes, 0.5, seed=k) for k in range(4)]
    masks = [{name: mask.float() for name, mask in found.items()} for found in masks]
    w0 = net.state_dict()
    models = [
        authors._masked({name: w * (1 + 0.1 * k) for name, w in w0.items()}, masks[k]) for k in range(4)
    ]
    return authors.Start(net, masks, models, data(12))


def by_hand(start, lr):
    """One step on all samples in plain torch: an outcome as theirs would be."""
    mask = start.masks[0]
    average = {}
    for name in start.models[0]:
        total = sum(model[name] for model in start.models)
        if name in mask:
            total = total / sum(m[name] for m in start.masks).clamp(min=1) * mask[name]
        else:
            total = total / len(start.models)
        average[name] = total
    start.net.load_state_dict(average)
    x, y = authors._everything(start.data)
    start.net.zero_grad()
    torch.nn.functional.cross_entropy(start.net(x), y).backward()
    trained = {}
    for name, w in start.net.named_parameters():
        moved = w.detach() - lr * (w.grad + 5e-4 * w.detach())
        trained[name] = moved * mask[name] if name in mask else moved
    start.net.zero_grad()
    return average, trained


def test_our_side_is_the_round_by_hand(start):
    w0 = {name: w.clone() for name, w in start.net.state_dict().items()}
    average, trained = by_hand(start, authors.LR)
    start.net.load_state_dict(w0)
    first = authors._masked(w0, start.masks[0])
    drift = sum((trained[name] - first[name]).norm().item() for name in trained)
    kept = sum(int(mask.sum()) for mask in start.masks[0].values())
    theirs = authors.Outcome(average, trained, drift, kept)
    ours = authors.Ours(start, batch=12).outcome()
    losses = authors.check(theirs, ours, start)
    assert losses["after"] < losses["before"]
    for wrong in (
        theirs._replace(start=trained),
        theirs._replace(trained=average),
        theirs._replace(drift=1.01 * drift),
        theirs._replace(kept=kept - 9),
    ):
        with pytest.raises(AssertionError, match="expected"):
            authors.check(wrong, ours, start)
    with pytest.raises(AssertionError, match="loss that falls"):
        authors.check(theirs._replace(trained=average), ours._replace(trained=average), start)


def test_a_pruning_round_of_ours_prunes(start):
    ours = authors.Ours(start, batch=4, grow_batches=2)
    usual, pruned = ours.round(prune=False), ours.round(prune=True)
    assert pruned.mask.nnz == pruned.model.bitmap.nnz < usual.mask.nnz
    watch = Stopwatch()
    with watch.around(ours.parts):
        ours.round(prune=True)
    names = {"aggregate", "train", "drift", "prune", "growth scores, drop and grow", "message", "other"}
    assert set(watch.medians()) == names and all(s >= 0 for s in watch.medians().values())


def test_distance_is_relative_and_sees_missing_tensors():
    a = {"w": torch.tensor([3.0, 4.0])}
    assert authors.distance(a, {"w": torch.tensor([3.0, 4.5])}) == pytest.approx(0.1)
    with pytest.raises(AssertionError, match="expected the tensors"):
        authors.distance(a, {"v": a["w"]})


def test_another_folder_is_refused(tmp_path):
    with pytest.raises(ValueError, match="expected a checkout of EricLoong/da-dpfl"):
        authors.Code.at(tmp_path)


def test_a_stopwatch_splits_a_call_and_puts_functions_back(monkeypatch):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr("sparsefl.bench.stopwatch.process_time", lambda: clock.now)

    def takes(seconds):
        def work():
            clock.now += seconds

        return work

    where = SimpleNamespace(a=takes(2.0), b=takes(3.0), c=takes(0.5))
    kept, watch = where.a, Stopwatch()
    for extra in (100.0, 1.0, 1.0):  # the first warms up
        with watch.around({"ab": [(where, "a"), (where, "b")], "never": [(where, "a")][1:]}):
            where.a(), where.b(), where.c()
            clock.now += extra
    assert watch.medians() == {"ab": 5.0, "other": 1.5} and where.a is kept


def row(density, name, milliseconds, round="usual", **parts):
    return {"density": density, "round": round, "name": name, "median_ms": milliseconds, "spread": 0.1,
            "cpu_ms": milliseconds, "times_ours": milliseconds / 100, "parts_ms": parts}  # fmt: skip


def test_the_goal_is_of_the_whole_client_round():
    rows = []
    for density in (0.5, 0.2):
        rows += [row(density, "authors", 500, train=200, copies=300), row(density, "sparsefl", 100, train=80),
                 row(density, "sparsefl, their batches", 125, train=80)]  # fmt: skip
    summary = authors.summarise(rows)
    assert summary["density 0.5, usual round"] == {
        "authors_over_ours": 5.0, "with_their_batches": 4.0, "by_cpu_time": 5.0, "training_alone": 2.5,
        "goal": 5.0, "reached": True,
    }  # fmt: skip
    assert summary["density 0.2, usual round"]["reached"] is False
    shown = authors.as_table(rows)
    assert shown["rows"][0] == ["**density 0.5: whole**", "500", "100", "125", "5.00"]
    assert ["copies", "300", "", "", ""] in shown["rows"]
    assert "density 0.2, usual round: 5.00 of 9" in shown["note"]
    meta = {"cpu": "c", "instruction_set": "i", "threads": 1, "versions": {"torch": "2"}, "commit": "x"}
    text = report.markdown({"table": shown, "summary": summary, "meta": meta | {"date": "d"}})
    assert json.dumps(summary) and text.count("|---") == 5
