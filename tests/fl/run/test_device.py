"""Runs on a GPU, here the virtual card: against the CPU, and what is said where there is none."""

import os
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch
from groups import tiny

import fl
from fl.errors import ConfigError
from fl.train import places

SET = {
    "num_rounds": 2,
    "num_clients": 3,
    "topology.degree": 2,
    "data.train_per_client": 12,
    "data.test_per_client": 5,
    "data.partition": "iid",
    "training.epochs": 1,
    "training.batch_size": 8,
    "training.lr": 0.05,
}
DA_DPFL = SET | {"da_dpfl.delta_pr": 5.0, "da_dpfl.max_wait": 1, "training.max_norm": 1.0}


def pictures():
    rng = np.random.default_rng(0)
    y = np.arange(120) % 3
    return (60 * y[:, None, None] + rng.integers(0, 80, (120, 8, 8))).astype(np.uint8), y


def net(num_classes):
    assert num_classes == 3
    return tiny()


@pytest.fixture
def card():
    if torch.cuda.is_available():
        yield None
    else:
        virtual_card = pytest.importorskip("virtual_card", exc_type=ModuleNotFoundError)
        with virtual_card.installed() as found:
            yield found


def result(changes, **how):
    return fl.run("demo", network=net, data=pictures(), set=changes, **how)


def same(ours, theirs, clients=3):
    """Masks are identical; numbers agree within 1e-5."""
    for k in range(clients):
        a, b = ours.model(k), theirs.model(k)
        assert torch.equal(a.bitmap.words, b.bitmap.words)
        assert torch.allclose(a.values, b.values, rtol=1e-5, atol=1e-6)
        assert torch.allclose(a.rest, b.rest, rtol=1e-5, atol=1e-6)
    for line, other in zip(ours.metrics, theirs.metrics, strict=True):
        assert line["loss"] == pytest.approx(other["loss"], rel=1e-5)
        for key in ("accuracy_mean", "accuracy_before", "bytes_up_mean", "flop_round", "density_mean"):
            assert line[key] == other[key], key


def test_two_rounds_of_da_dpfl_are_those_of_the_cpu(card):
    """Waiting, drift, a pruning in round 1, growth."""
    with mock.patch("fl.algorithms.voting.prune_rounds", lambda *_, **__: {1}):
        ours, theirs = result(DA_DPFL, device="cuda"), result(DA_DPFL)
    same(ours, theirs)
    densities = [line["density_mean"] for line in ours.metrics]
    assert densities[1] < densities[0]
    assert "program on " in ours.summary["path"] and " on " not in theirs.summary["path"].split("(")[0]


@pytest.mark.parametrize(
    "changes", [{"algorithm": "fedavg"}, {"algorithm": "dispfl", "dispfl.grow": "random"}]
)
def test_a_round_of_others_is_that_of_the_cpu(card, changes):
    """Clients that are trained one at a time, and growth without gradients."""
    changes = SET | {"num_rounds": 1} | changes
    same(result(changes, device="cuda:0"), result(changes))


def test_a_group_may_be_split(card):
    """A client's numbers do not depend on who is in its group."""
    changes = SET | {"num_rounds": 1, "algorithm": "dispfl"}
    found = result(changes, device="cuda")
    with mock.patch("fl.train.group_worker.clients_at_once", lambda *_: 2):
        split = result(changes, device="cuda")
    for k in range(3):
        a, b = found.model(k), split.model(k)
        assert torch.equal(a.values, b.values) and torch.equal(a.bitmap.words, b.bitmap.words)


def test_a_card_and_the_cpu_share_the_clients(card):
    with pytest.warns(UserWarning, match="whichever is free"):
        found = result(SET | {"num_rounds": 1, "algorithm": "dispfl"}, device="cuda,cpu", workers=1)
    same(found, result(SET | {"num_rounds": 1, "algorithm": "dispfl"}))
    assert "and the CPU" in found.summary["path"]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"training.path": "layers"}, "train as a program on cuda:0, got layers"),
        ({"training.kernels": "dense"}, "train as a program on cuda:0, got dense"),
    ],
)
def test_what_is_no_program_is_refused(card, changes, sentence):
    with pytest.raises(ConfigError, match=sentence):
        result(SET | changes, device="cuda")


def test_a_network_without_a_gpu_version_is_refused_before_anything_is_written(card, tmp_path):
    with pytest.raises(ConfigError, match="there is no GPU version of dropout"):
        fl.run("demo", set={"model.name": "alexnet", "data.size": 32}, device="cuda", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("algorithm", "sentence"), [("dfedsam", "SAM"), ("ditto", "drawn towards")])
def test_training_without_a_gpu_version_is_refused(card, algorithm, sentence):
    with pytest.raises(RuntimeError, match=f"there is no GPU version of .*{sentence}"):
        result(SET | {"algorithm": algorithm, "num_rounds": 1}, device="cuda")


def test_workers_are_those_of_the_cpu(card):
    with pytest.raises(ConfigError, match="workers: expected none with device cuda, since a GPU has one"):
        result(SET, device="cuda", workers=2)
    assert places.of_workers(("cuda:0", "cuda:1", "cpu"), 2) == ["cuda:0", "cuda:1", "cpu", "cpu"]


def test_too_little_memory_is_said(card):
    if card is None:
        pytest.skip("a real card has enough")
    with (
        mock.patch.object(torch.cuda, "mem_get_info", lambda *_: (1000, 1 << 30)),
        pytest.raises(RuntimeError, match="MB free on cuda:0 for one client, got 0 MB"),
    ):
        result(SET | {"num_rounds": 1}, device="cuda")


# ---- without one ----


@pytest.fixture
def no_card():
    with mock.patch.object(torch.cuda, "is_available", lambda: False):
        yield


@pytest.mark.parametrize("device", ["cuda", "cuda:1", "all", "all,cpu"])
def test_no_gpu(no_card, device):
    with (
        mock.patch.object(torch.version, "cuda", "13.0"),
        mock.patch.dict("os.environ"),
        mock.patch("sparse_engine.program.gpu.cards.DRIVER") as driver,
        pytest.raises(
            ConfigError, match=r"^device: expected a GPU for cuda:., got none: there is no NVIDIA driver"
        ),
    ):
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        driver.exists.return_value = False
        result(SET, device=device)


@pytest.mark.parametrize(
    ("cuda", "variables", "driver", "sentence"),
    [
        (None, {}, False, "was built without CUDA"),
        ("13.0", {"CUDA_VISIBLE_DEVICES": ""}, True, "sees no GPU with CUDA_VISIBLE_DEVICES=''"),
        ("13.0", {}, True, "may be older than CUDA 13.0 wants"),
    ],
)
def test_why_there_is_none(no_card, monkeypatch, cuda, variables, driver, sentence):
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with (
        mock.patch("sparse_engine.program.gpu.cards.DRIVER") as path,
        pytest.raises(ConfigError, match=sentence),
    ):
        path.exists.return_value = driver
        places.find("cuda")


def test_a_wrong_device_is_refused():
    with pytest.raises(ConfigError, match="^--device: expected cpu, cuda, cuda:NUMBER or all, .*'gpu'"):
        places.find("gpu", "--device")


def cards_of(capability, number=1):
    told = SimpleNamespace(name="A card", major=capability[0], minor=capability[1], total_memory=1 << 33)
    return (
        mock.patch.object(torch.cuda, "is_available", lambda: True),
        mock.patch.object(torch.cuda, "device_count", lambda: number),
        mock.patch.object(torch.cuda, "get_device_properties", lambda *_: told),
    )


def test_a_card_that_is_too_old():
    one, two, three = cards_of((7, 5))
    with one, two, three, pytest.raises(ConfigError, match="from sm_80 on .*got cuda:0, A card with sm_75"):
        places.find("cuda")


def test_a_torch_that_was_built_for_others(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_90", "compute_120"])
    one, two, three = cards_of((8, 9))
    with one, two, three, pytest.raises(ConfigError, match=r"torch that was built for sm_89 \(A card\)"):
        places.find("cuda")


def test_a_number_that_is_not_there():
    one, two, three = cards_of((8, 9), 2)
    with one, two, three:
        assert places.find("all") == places.find("cuda,cuda:1") == ("cuda:0", "cuda:1")
        assert places.find("cpu,cuda:1") == ("cuda:1", "cpu")
        with pytest.raises(ConfigError, match=r"expected a GPU out of \['cuda:0', 'cuda:1'\], got cuda:2"):
            places.find("cuda:2")
