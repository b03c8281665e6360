"""The benchmark of messages, on a small network."""

import json

import numpy as np
import pytest
import torch

import sparse_engine as se
from sparsefl.bench import __main__ as command
from sparsefl.bench import models, wire
from sparsefl.kernels.bitmap import to_mask


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setitem(models.MODELS, "lenet5", (10, (1, 28, 28)))
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def result():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(models.MODELS, "lenet5", (10, (1, 28, 28)))
        return list(wire.run(("lenet5",), (0.2,), repeats=1))


def test_rows(result):
    stages = dict.fromkeys(row["stage"] for row in result)
    assert list(stages) == ["first", "rigl 0.3", "rigl 0.1", "rigl 0.01"]
    for row in result:
        assert row["bytes"] > 0 and row["encode_gbps"] > 0 and row["decode_gbps"] > 0
        assert row["of_bound"] == pytest.approx(row["bytes"] / row["bytes_bound"], rel=1e-3)
        if row["name"] in ("entropy", "difference"):
            assert 0.99 < row["of_bound"] < 1.02
    flips = [row["mask_bytes"] for row in result if row["name"] == "difference"]
    assert flips == sorted(flips, reverse=True)  # the less RigL moves, the less there is to say


def test_summary(result):
    summary = wire.summarise(result)
    assert list(summary) == ["lenet5, first", "lenet5, rigl 0.1"]
    cell = summary["lenet5, first"]["0.2"]
    by_name = {row["name"]: row for row in result if row["stage"] == "first"}
    assert cell["of_bound"] == by_name["entropy"]["of_bound"] and cell["vs_csr"] == by_name["fp32"]["vs_csr"]


def test_the_bound_by_hand():
    net = se.sparsify(se.models.by_name("lenet5", num_classes=10), density=0.3, seed=0)
    state = se.compress(net)
    bits = 0.0
    for mask in to_mask(state.bitmap).split(state.layout.segments.sizes):
        p = mask.double().mean().item()
        bits -= mask.numel() * (p * np.log2(p) + (1 - p) * np.log2(1 - p)) if 0 < p < 1 else 0
    assert wire.bound(state) == pytest.approx(4 * (state.bitmap.nnz + state.rest.numel()) + bits / 8)
    assert wire.bound(state, state.bitmap) == pytest.approx(4 * (state.bitmap.nnz + state.rest.numel()))
    rows = sum(shape[0] + 1 for shape in state.layout.shapes)
    assert wire.csr_bytes(state) == 8 * state.bitmap.nnz + 4 * (rows + state.rest.numel())


def test_a_wrong_message_gets_no_time(monkeypatch):
    real = se.wire.decode
    monkeypatch.setattr(
        se.wire, "decode", lambda *given: real(*given).with_values(torch.rand_like(real(*given).values))
    )
    with pytest.raises(AssertionError, match="gets no time"):
        list(wire.run(("lenet5",), (0.2,), repeats=1, stages=False))


def test_the_command_writes_the_agreed_shape(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(models, "MODELS", {"lenet5": (10, (1, 28, 28))})
    path = tmp_path / "wire.json"
    assert command.main(["wire", "--quick", "--json", str(path)]) == 0
    result = json.loads(path.read_text())
    assert set(result) == {"meta", "rows", "summary"} and "lenet5, first" in result["summary"]
    assert "| lenet5, first |" in capsys.readouterr().out
