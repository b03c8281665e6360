"""Models out of run directories: what comes out reaches the accuracy that the run recorded."""

import shutil
from statistics import fmean
from types import SimpleNamespace

import pytest
import torch

import sparse_engine as se
from fl import algorithms
from fl.data.batches import evaluation_batches
from fl.errors import CheckpointError, ConfigError, RunDirError
from fl.run import models, runs, setup
from fl.run.names import CHECKPOINT, CLIENTS, METRICS
from fl.run.rundir import read_jsonl
from fl.run.runs import Options

WITHOUT_PRUNING = ("num_rounds=2",)  # the first one would be in round 2


def run(tiny, path, *changes):
    cfg = tiny(*WITHOUT_PRUNING, *changes)
    runs.start(cfg, path, Options(workers=1))
    return path


def accuracy(cfg, network, k):
    """Of an ordinary torch network on client k's test samples, by hand."""
    setting = setup.prepare(cfg)
    hits = total = 0
    with torch.no_grad():
        for x, y in evaluation_batches(setting.data, setting.partition.test.of(k), 7):
            hits, total = hits + int((network(x).argmax(1) == y).sum()), total + len(y)
    return hits / total


@pytest.fixture(scope="module")
def peers(tiny, tmp_path_factory):
    return run(tiny, tmp_path_factory.mktemp("models") / "run")


PEERS = ["da_dpfl", "dispfl", "dfedsam", "gossipfl", "beer", "dfedavgm"]


@pytest.mark.parametrize("name", [*PEERS, "ditto", "fedavg", "feddst"])
def test_models_reach_the_accuracy_that_was_recorded(tiny, tmp_path, name):
    fixed = ["topology.redraw=false"] if name == "beer" else []
    path = run(tiny, tmp_path / "run", f"algorithm={name}", *fixed)
    trained = models.read(path)
    found = [accuracy(trained.config, trained.network(model), k) for k, model in enumerate(trained.clients)]
    line = read_jsonl(path / METRICS)[-1]
    assert trained.round == line["round"] == 1 and len(found) == 4
    if name in PEERS:
        assert found == [one["accuracy"] for one in read_jsonl(path / CLIENTS)[-4:]]
    elif name == "ditto":
        assert fmean(found) == pytest.approx(line["accuracy_mean"])
    else:
        assert fmean(found) == pytest.approx(line["accuracy_global"])
    if name in PEERS:
        with pytest.raises(ConfigError, match=f"expected an algorithm with a server, got {name}"):
            models.server_model(path)
    else:
        server = [accuracy(trained.config, trained.network(trained.server), k) for k in range(4)]
        assert fmean(server) == pytest.approx(line["accuracy_global"])


def test_every_algorithm_says_which_models_are_its_clients():
    """A new one that forgets it is found here: its state is `clients` with a `model`, or it says so."""
    for name, algorithm in algorithms.registered().items():
        kind = getattr(algorithm, "Client", None)
        assert hasattr(algorithm, "client_models") or "model" in {*kind.__annotations__, *dir(kind)}, name


def test_networks_are_dense_with_zeros(peers):
    model, network = models.client_model(peers, 3), models.client_network(peers, 3)
    assert model.density < 0.6 and not network.training
    assert type(network) is type(se.models.by_name("small_cnn", in_channels=1))
    for name in model.layout.names:
        weight = network.get_parameter(name)
        assert torch.equal(weight, model.tensor(name).to_dense())
        assert weight.count_nonzero() <= model.pattern(name).nnz


def test_what_is_not_there_is_a_sentence(peers, tmp_path):
    for k in (-1, 4):
        with pytest.raises(ConfigError, match=f"expected a client from 0 to 3, got {k}"):
            models.client_model(peers, k)
    with pytest.raises(RunDirError, match="has no config.toml"):
        models.client_model(tmp_path, 0)
    copy = shutil.copytree(peers, tmp_path / "copy")
    shutil.rmtree(copy / CHECKPOINT)
    with pytest.raises(RunDirError, match="expected a checkpoint in .*, got none"):
        models.client_model(copy, 0)


def test_a_damaged_checkpoint_is_left_aside(peers, tmp_path):
    copy = shutil.copytree(peers, tmp_path / "copy")
    shards = sorted((copy / CHECKPOINT).glob("round-*/*.safetensors"))
    shards[-1].write_bytes(shards[-1].read_bytes()[:-1])
    trained = models.read(copy)
    assert trained.round == 0 and len(trained.problems) == 1 and "round-00001" in trained.problems[0]
    shards[0].unlink()
    with pytest.raises(CheckpointError, match="expected a whole checkpoint"):
        models.read(copy)


def test_another_configuration_is_refused(peers, tmp_path):
    copy = shutil.copytree(peers, tmp_path / "copy")
    text = (copy / "config.toml").read_text()
    (copy / "config.toml").write_text(text.replace("width = 4", "width = 8"))
    with pytest.raises(RunDirError, match=r"as the run was started with, got it with \['width = 8'\]"):
        models.read(copy)


def test_an_algorithm_that_says_nothing():
    with pytest.raises(ConfigError, match=r"expected mine to say .* client_models\(state\)"):
        models.of_clients(SimpleNamespace(), SimpleNamespace(other=1), "mine")
    with pytest.raises(ConfigError, match="expected mine to say"):
        models.of_clients(SimpleNamespace(), SimpleNamespace(clients=(SimpleNamespace(model=1),)), "mine")
