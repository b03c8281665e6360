"""fl/train/path.py: which path trains clients, and why; said wherever a run is told of."""

import json

import pytest
import torch
from torch import nn

import fl
import sparse_engine as se
from fl.config import Training
from fl.errors import MixedError
from fl.report import report
from fl.run import history, recorded
from fl.run.events import Listener
from fl.train import path

SMALL = {"num_rounds": 2, "num_clients": 4, "topology.degree": 2, "training.epochs": 1}
NO_STEP = "layers (no program: there is no step for LayerNorm (3))"


def chosen(net, **training):
    return str(path.choose(Training(**training), net, (1, 8, 8), se.compress(net).layout))


def with_layer_norm():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 20), nn.ReLU(), nn.LayerNorm(20), nn.Linear(20, 10))


@pytest.mark.parametrize(
    ("made", "training", "text"),
    [
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), {}, "program (2 steps)"),
        (with_layer_norm, {}, NO_STEP),
        (with_layer_norm, {"path": "layers"}, "layers (training.path = layers)"),
        (with_layer_norm, {"kernels": "dense"}, "dense (training.kernels = dense)"),
    ],
)
def test_the_path_says_why(made, training, text):
    assert chosen(made(), **training) == text


@pytest.mark.parametrize("path", ["program", "layers"])
def test_bf16_is_said_with_what_its_numbers_depend_on(path):
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    why = {"program": "2 steps", "layers": "training.path = layers"}[path]
    how = "with" if se.has_bf16() else "without"
    assert chosen(net, precision="bf16", path=path) == f"{path} ({why}; bf16 {how} AVX512_BF16)"


class Head(Listener):
    def __init__(self):
        self.heard = []

    def run_started(self, config, path, first):
        self.heard.append("started")

    def path_chosen(self, path):
        self.heard.append(path)

    def round_started(self, t):
        self.heard.append(t)


@pytest.mark.parametrize(
    ("network", "changes", "text"),
    [
        (with_layer_norm, {}, NO_STEP),
        (None, {"training.kernels": "dense"}, "dense (training.kernels = dense)"),
        (None, {}, "program (7 steps)"),
    ],
)
def test_a_run_says_it_at_its_head_in_its_files_and_on_its_page(tmp_path, network, changes, text):
    head, out = Head(), tmp_path / "run"
    result = fl.run("demo", network=network, set=SMALL | changes, out=out, listeners=[head])
    assert head.heard == ["started", text, 0, 1]
    assert result.summary["path"] == text
    assert json.loads((out / "summary.json").read_text())["path"] == text
    assert f"# clients train as {text}\n" in (out / "config.toml").read_text()
    assert f"<p>Clients train as {text}.</p>" in report.html(recorded.read(out))


def test_a_run_in_bf16_has_the_same_bits_for_any_workers_and_after_a_stop(tmp_path):
    changes = SMALL | {"training.precision": "bf16"}
    one = fl.run("demo", set=changes, workers=1, out=tmp_path / "one")
    stopped = fl.Simulation("demo", set=changes, workers=2, out=tmp_path / "two")
    next(iter(stopped))
    stopped.close()
    two = fl.Simulation.resume(tmp_path / "two", workers=2).run()
    other = fl.run("demo", set=SMALL, workers=1)
    assert one.summary["path"].startswith("program (7 steps; bf16 with")
    assert one.metrics["loss"] == two.metrics["loss"] != other.metrics["loss"]
    for k in range(4):
        a, b, full = (run.model(k) for run in (one, two, other))
        assert torch.equal(a.values, b.values) and torch.equal(a.rest, b.rest)
        assert a.values.dtype == torch.float32 and not torch.equal(a.rest, full.rest)


def test_a_run_that_is_not_finished_says_it_too(tmp_path):
    simulation = fl.Simulation("demo", set=SMALL, out=tmp_path / "run")
    next(iter(simulation))
    simulation.close()
    assert recorded.read(tmp_path / "run").summary["path"] == "program (7 steps)"


def test_runs_of_older_versions_say_nothing(tmp_path):
    out = tmp_path / "run"
    fl.run("demo", set=SMALL, out=out)
    summary = json.loads((out / "summary.json").read_text())
    del summary["path"]
    (out / "summary.json").write_text(json.dumps(summary))
    run = recorded.read(out)
    assert run.summary["path"] == "" and "Clients train as" not in report.html(run)


def test_a_run_does_not_go_on_on_another_path_unasked(tmp_path, monkeypatch):
    out = tmp_path / "run"
    simulation = fl.Simulation("demo", set=SMALL, out=out)
    next(iter(simulation))
    simulation.close()
    monkeypatch.setattr(path, "capture", _cannot)
    with pytest.raises(
        MixedError, match=r"path layers \(no program: not today\) instead of program \(7 steps\)"
    ):
        fl.Simulation.resume(out).run()
    with pytest.warns(UserWarning, match="marked as mixed: path layers"):
        mixed = fl.Simulation.resume(out, allow_mixed=True).run().summary
    assert mixed["path"] == "layers (no program: not today)"
    assert [part["numerics"][history.PATH] for part in mixed["mixed"]] == ["program (7 steps)", mixed["path"]]


def _cannot(*_):
    raise path.NotCaptured("not today")
