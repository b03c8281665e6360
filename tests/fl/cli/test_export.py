"""`sparsefl export`: the files hold the models of the run; what cannot be written is a sentence."""

import io
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch
from typer.testing import CliRunner

import sparse_engine as se
from fl.cli import export
from fl.cli.app import app
from fl.data.batches import evaluation_batches
from fl.run import models, runs, setup
from fl.run.names import CLIENTS
from fl.run.rundir import read_jsonl
from fl.run.runs import Options

ROOT = Path(__file__).parents[3]


def sparsefl(*args):
    return CliRunner().invoke(app, [str(arg) for arg in args], prog_name="sparsefl")


@pytest.fixture(scope="module")
def done(tiny, tmp_path_factory):
    """A run of two rounds: DA-DPFL, nothing pruned yet."""
    path = tmp_path_factory.mktemp("export") / "run"
    runs.start(tiny("num_rounds=2"), path, Options(workers=1))
    return path


@pytest.fixture(scope="module")
def samples(tiny):
    """[client]: its test samples in one batch."""
    setting = setup.prepare(tiny("num_rounds=2"))
    return [next(evaluation_batches(setting.data, setting.partition.test.of(k), 1000)) for k in range(4)]


def network():
    """As somebody builds it who has nothing of the run."""
    return se.models.by_name("small_cnn", in_channels=1, num_classes=10, width=4).eval()


def accuracy(net, x, y):
    with torch.no_grad():
        return float((net(x).argmax(1) == y).double().mean())


@pytest.mark.parametrize("form", ["state_dict", "safetensors"])
def test_round_trip_of_dense_tensors(done, samples, tmp_path, form):
    """The network that is read back has the accuracy that the run recorded for each client."""
    out = tmp_path / f"net{export.FORMATS[form]}"
    told = sparsefl("export", done, "--client", "all", "--format", form, "--out", out)
    assert told.exit_code == 0, told.output
    for k, line in enumerate(read_jsonl(done / CLIENTS)[-4:]):
        file = tmp_path / f"net-client-{k}{out.suffix}"
        assert f"client-{k} after round 1" in told.output
        dense = (
            torch.load(file, weights_only=True) if form == "state_dict" else safetensors.torch.load_file(file)
        )
        net = network()
        net.load_state_dict(dense)
        assert accuracy(net, *samples[k]) == line["accuracy"]
    assert sorted(tmp_path.iterdir()) == [tmp_path / f"net-client-{k}{out.suffix}" for k in range(4)]
    assert "float32 [n, 1, 8, 8], (x - mean) / std, mean [" in told.output


def test_sparse_tensors_are_those_of_the_model(done, tmp_path):
    out = tmp_path / "three.safetensors"
    told = sparsefl("export", done, "--client", 3, "--format", "safetensors", "--sparse", "--out", out)
    assert told.exit_code == 0, told.output
    model = models.client_model(done, 3)
    read = se.Model.from_tensors(se.compress(network()).layout, safetensors.torch.load_file(out))
    assert all(
        torch.equal(a, b) for a, b in zip(read.tensors().values(), model.tensors().values(), strict=True)
    )
    with safetensors.safe_open(out, "pt") as file:
        about = file.metadata()
    layout = json.loads(about["layout"])
    assert [name for name, _ in layout["weights"]] == list(model.layout.names)
    assert [name for name, *_ in layout["rest"]] == [entry.name for entry in model.layout.rest]
    assert about["model"] == "client-3" and about["round"] == "1" and about["algorithm"] == "da_dpfl"
    assert json.loads(about["network"])["name"] == "small_cnn" and len(json.loads(about["classes"])) == 10


def test_the_server(tiny, tmp_path):
    runs.start(tiny("algorithm=fedavg", "num_rounds=1"), tmp_path / "run", Options(workers=1))
    out = tmp_path / "server.pt"
    assert sparsefl("export", tmp_path / "run", "--client", "server", "--out", out).exit_code == 0
    wanted = models.read(tmp_path / "run")
    found, dense = torch.load(out, weights_only=True), wanted.network(wanted.server).state_dict()
    assert all(torch.equal(found[name], dense[name]) for name in dense)


def test_nothing_is_replaced_unasked(done, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert sparsefl("export", done, "--client", 2).exit_code == 0
    (tmp_path / "client-1.pt").write_bytes((tmp_path / "client-2.pt").read_bytes())
    (tmp_path / "client-2.pt").unlink()
    again = sparsefl("export", done)  # all of them
    assert again.exit_code == 2 and "expected a new file, got client-1.pt" in again.output
    assert [x.name for x in tmp_path.iterdir()] == ["client-1.pt"]
    assert sparsefl("export", done, "--overwrite").exit_code == 0
    assert len([*tmp_path.iterdir()]) == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--client", "4"), "expected a client from 0 to 3, got 4"),
        (("--client", "-1"), "--client: expected a number, all or server, got '-1'"),
        (("--client", "server"), "expected an algorithm with a server, got da_dpfl"),
        (("--format", "pickle"), "--format: expected one of ['state_dict', 'safetensors', 'onnx-dense']"),
        (("--sparse",), "expected --sparse with --format safetensors, got state_dict"),
        (("--client", "1", "--out", "no/where.pt"), "expected a file in a folder that is there"),
    ],
)
def test_wrong_use_is_a_sentence(done, tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    told = sparsefl("export", done, *options)
    assert told.exit_code == 2 and message in told.output and not [*tmp_path.iterdir()]


def test_input_in_words(done):
    trained = models.read(done)
    data = SimpleNamespace(shape=(20,), mean=tuple(map(float, range(20))), std=(1.0,))
    assert export._input(replace(trained, data=data)) == (
        "float32 [n, 20], (x - mean) / std, mean [0, 1, 2, 3, ... (20)], std [1]"
    )
    raw = SimpleNamespace(shape=(20,), mean=(), std=())
    assert export._input(replace(trained, data=raw)) == "float32 [n, 20], as the data are"


def test_the_lines_of_the_documentation(done, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    safe = ("--format", "safetensors")
    for options in ((), safe, (*safe, "--sparse", "--out", "sparse.safetensors")):
        assert sparsefl("export", done, "--client", 3, *options).exit_code == 0
    (lines,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "export.md").read_text(), re.DOTALL)
    names = {"se": se, "torch": torch, "safetensors": safetensors}
    exec(lines.replace("width=16", "width=4"), names)
    assert names["model"].density == models.client_model(done, 3).density
    assert torch.equal(se.compress(names["sparse_net"]).values, names["model"].values)


def test_no_run_is_a_sentence(tmp_path):
    told = sparsefl("export", tmp_path)
    assert told.exit_code == 1 and "has no config.toml" in told.output


def test_without_onnx_is_a_sentence(done, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    told = sparsefl("export", done, "--format", "onnx-dense", "--client", 0, "--out", tmp_path / "x.onnx")
    assert told.exit_code == 1 and "pip install onnx" in told.output and not [*tmp_path.iterdir()]


def test_onnx(done, samples, tmp_path):
    onnx = pytest.importorskip("onnx")
    out = tmp_path / "one.onnx"
    told = sparsefl("export", done, "--format", "onnx-dense", "--client", 1, "--out", out)
    assert told.exit_code == 0, told.output
    made = onnx.load(io.BytesIO(out.read_bytes()))
    assert {prop.key: prop.value for prop in made.metadata_props}["model"] == "client-1"
    runtime = pytest.importorskip("onnxruntime")
    x, y = samples[1]
    (logits,) = runtime.InferenceSession(str(out)).run(None, {"input": x.numpy()})
    assert np.mean(logits.argmax(1) == y.numpy()) == read_jsonl(done / CLIENTS)[-3]["accuracy"]
