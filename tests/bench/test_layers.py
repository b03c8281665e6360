"""The benchmarks of layers and models, on small cases."""

import sys

import pytest
import torch

from sparsefl.bench import layers, models, report


@pytest.fixture(autouse=True)
def threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_layers_compare_with_both_dense_layouts_and_with_csr(monkeypatch):
    small = (layers.Shape("conv3x3", 8, 8, 6), layers.Shape("linear", 40, 30, 1, 1))
    monkeypatch.setattr(layers, "SHAPES", small)
    monkeypatch.setitem(sys.modules, "sparseprop", None)  # its rows: test_sparseprop.py
    rows = list(layers.run((8,), (0.5, 0.9), threads=1, repeats=1, family=None))
    names = {row["name"] for row in rows if row["family"] == "conv3x3"}
    assert {"torch", "torch channels_last", "sparsefl weight_gradient"} <= names
    summary = layers.summarise(rows)
    assert set(summary["conv3x3, batch 8"]["0.5"]) == {"vs_dense", "worst"}
    assert "vs_csr" in summary["linear, batch 8"]["0.9"]


def test_with_kernels_the_choice_is_compared_with_the_best_of_them():
    def row(name, milliseconds):
        return {"family": "f", "batch": 1, "sparsity": 0.5, "shape": "s", "name": name,
                "median_ms": milliseconds, "times_ours": None}  # fmt: skip

    rows = [row("sparsefl forward", 4.0), row("sparsefl weight_gradient", 6.0), row("torch", 9.0)]
    rows += [row("sparse forward", 4.0), row("dense forward", 2.0), row("sparse weight_gradient", 6.0)]
    assert layers.summarise(rows)["f, batch 1"]["0.5"]["auto"] == pytest.approx(0.8)


def test_models_give_realisation(monkeypatch):
    monkeypatch.setitem(models.MODELS, "small_cnn", (10, (3, 8, 8)))
    rows = list(models.run(("small_cnn",), (4,), (0.5,), threads=1, repeats=1, memory=False))
    (cell,) = models.summarise(rows)["small_cnn, batch 4"].values()
    assert cell["realisation"] == pytest.approx(cell["vs_dense"] / rows[0]["flop_ratio"])
    assert {row["name"] for row in rows} == {"sparsefl", "torch", "torch channels_last", "masked torch"}


def test_peak_memory_is_of_the_steps_alone(monkeypatch):
    measured = models.peak_memory("vgg11", 2, 0.1)
    assert 1e6 < measured["sparse"] < 1e9 and measured["ratio"] == measured["sparse"] / measured["dense"]


def test_rates_are_shares_of_a_matrix_product():
    row = {"shape": "s", "batch": 1, "sparsity": 0.5, "gflops": 30.0, "kernel": "sparse"}
    rows = [row | {"name": "sparsefl forward"}, row | {"name": "torch", "gflops": None, "kernel": None}]
    rows += [row | {"name": "sparsefl weight_gradient", "gflops": 90.0, "kernel": "winograd"}]
    more = ("cpu", "instruction_set", "threads", "commit", "date")
    text = report.rates({"rows": rows, "meta": {"matmul_gflops": 60.0} | dict.fromkeys(more, "x")})
    assert "| s, batch 1 | y 30 (50%), dw 90 (150%) winograd |" in text
    assert layers.matmul_gflops(1) > 0


def test_runs_of_other_cases_are_joined_and_of_other_commits_are_not():
    def result(case, commit="a"):
        keys = ("cpu", "instruction_set", "threads", "versions", "date")
        return {"meta": dict.fromkeys(keys, "x") | {"commit": commit}, "rows": [case], "summary": {case: {}}}

    both = report.joined([result("one"), result("two")])
    assert both["rows"] == ["one", "two"] and list(both["summary"]) == ["one", "two"]
    with pytest.raises(ValueError, match="one commit"):
        report.joined([result("one"), result("two", commit="b")])
    with pytest.raises(ValueError, match="twice"):
        report.joined([result("one"), result("one")])
