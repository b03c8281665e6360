"""The benchmarks of layers and models, on small cases."""

import sys

import pytest
import torch

import sparse_engine as se
from sparsefl.bench import dense, layers, models, peaks, report


@pytest.fixture(autouse=True)
def threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_layers_compare_with_both_dense_layouts_and_with_csr(monkeypatch):
    small = (layers.Shape("conv3x3", 8, 8, 6), layers.Shape("linear", 40, 30, 1, 1))
    monkeypatch.setattr(layers, "SHAPES", small)
    monkeypatch.setitem(sys.modules, "sparseprop", None)  # its rows: test_sparseprop.py
    rows = list(layers.run((8,), (0.5, 0.9), threads=1, repeats=1, family=None, compiled=False))
    names = {row["name"] for row in rows if row["family"] == "conv3x3"}
    assert {"torch", "torch channels_last", "sparsefl weight_gradient"} <= names
    summary = layers.summarise(rows)
    assert set(summary["conv3x3, batch 8"]["0.5"]) == {"vs_dense", "worst", "vs_best"}
    assert "vs_csr" in summary["linear, batch 8"]["0.9"]


def test_with_kernels_the_choice_is_compared_with_the_best_of_them():
    def row(name, milliseconds):
        return {"family": "f", "batch": 1, "sparsity": 0.5, "shape": "s", "name": name,
                "median_ms": milliseconds, "times_ours": None}  # fmt: skip

    rows = [row("sparsefl forward", 4.0), row("sparsefl weight_gradient", 6.0), row("torch", 9.0)]
    rows += [row("kernel sparse forward", 4.0), row("kernel dense forward", 2.0)]
    rows += [row("kernel sparse weight_gradient", 6.0)]
    assert layers.summarise(rows)["f, batch 1"]["0.5"]["auto"] == pytest.approx(0.8)


def test_models_give_realisation(monkeypatch):
    monkeypatch.setitem(models.MODELS, "small_cnn", (10, (3, 8, 8)))
    how = {"threads": 1, "repeats": 1, "memory": False, "compiled": False}
    rows = list(models.run(("small_cnn",), (4,), (0.5,), **how))
    (cell,) = models.summarise(rows)["small_cnn, batch 4"].values()
    assert cell["realisation"] == pytest.approx(cell["vs_dense"] / rows[0]["flop_ratio"])
    dense = {"torch", "torch channels_last", "torch bf16", "torch channels_last bf16"}
    assert {row["name"] for row in rows} == {"program", "layers", "masked torch"} | dense
    assert cell.keys() == {"vs_dense", "vs_best", "realisation", "vs_layers", "vs_masked"}
    by_name = {row["name"]: row["median_ms"] for row in rows}
    assert cell["vs_layers"] == pytest.approx(by_name["layers"] / by_name["program"])


def test_the_summary_of_models_by_hand():
    """bf16 is no float32: it counts for the best of all alone. What was skipped counts nowhere."""
    times = {"program": 1.0, "torch": 4.0, "torch compiled": 3.0, "torch bf16": 0.5, "layers": 2.0}
    case = {"model": "m", "batch": 1, "density": 0.5}
    rows = [
        case | {"name": who, "times_ours": ms, "flop_ratio": 2.0, "memory_ratio": None}
        for who, ms in times.items()
    ]
    rows.append(case | {"name": "torch compiled bf16", "skipped": "no compiler"})
    wanted = {"vs_dense": 3.0, "realisation": 1.5, "vs_best": 0.5, "vs_layers": 2.0}
    assert models.summarise(rows) == {"m, batch 1": {"0.5": wanted}}
    assert models.told(rows[-1]).endswith("torch compiled bf16 skipped: no compiler")


def test_a_machine_without_a_compiler_says_so(monkeypatch):
    def refused(net, **how):
        def call(x):
            raise RuntimeError("no compiler\nhere")

        return call

    monkeypatch.setattr(torch, "compile", refused)
    images, labels = torch.randn(4, 3, 8, 8), torch.arange(4)
    found = dense.rivals("small_cnn", 10, images, labels)
    assert found.skipped.keys() == {"torch compiled", "torch compiled bf16"}
    assert set(found.skipped.values()) == {"torch.compile: RuntimeError: no compiler"}
    assert len(found.steps) == 4


def test_a_rival_that_computes_something_else_gets_no_time():
    dense.check("torch bf16", [2.0, 1.0], [2.05, 1.0])
    with pytest.raises(AssertionError, match="torch compiled: expected the losses"):
        dense.check("torch compiled", [2.0, 1.0], [2.05, 1.0])
    with pytest.raises(AssertionError, match="torch bf16: expected"):
        dense.check("torch bf16", [float("nan"), 1.0], [2.0, 1.0])


def test_a_wrong_step_of_a_program_gets_no_time(monkeypatch):
    net = se.sparsify(se.models.small_cnn(), density=0.5, seed=0)
    images, labels = torch.randn(4, 3, 8, 8), torch.arange(4)
    models._check_step(net, images, labels)
    step = models.layers_step
    monkeypatch.setattr(models, "layers_step", lambda net, x, y, lr: step(net, x, y, lr / 0.99))
    with pytest.raises(AssertionError, match="steps are off by 0.01"):
        models._check_step(net, images, labels)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_peak_memory_is_of_the_steps_alone(precision):
    measured = peaks.peak_memory("vgg11", 2, 0.1, precision=precision)
    assert measured.keys() == {"program", "layers", "dense"}
    assert all(1e6 < peak < 1e9 for peak in measured.values())


def test_bf16_has_rivals_of_its_own_precision():
    case = {"model": "vgg11", "batch": 8, "density": 0.2, "precision": "bf16", "flop_ratio": 2.0}
    times = {"program bf16": 1.0, "layers bf16": 1.1, "program": 1.3, "torch": 4.0, "torch bf16": 3.0}
    rows = [case | {"name": name, "times_ours": t, "memory_ratio": None} for name, t in times.items()]
    rows[0]["memory_ratio"] = 0.4
    (cells,) = models.summarise(rows).values()
    assert cells == {
        "0.2": {
            "memory": 0.4,
            "vs_layers": 1.1,
            "vs_fp32": 1.3,
            "vs_best": 3.0,
            "vs_dense": 3.0,
            "realisation": 1.5,
        }
    }
    assert models._ratio({"program": 2.0, "dense": 4.0}, "program bf16", "bf16") == 0.5
    assert models._ratio({"program": 2.0, "dense": 4.0}, "program", "bf16") is None


def test_our_steps_in_bf16_are_checked_and_take_their_turns():
    net = se.sparsify(se.models.small_cnn(), density=0.5, seed=0)
    images, labels = torch.randn(4, 3, 8, 8), torch.arange(4)
    skipped = {}
    found = models._ours(models.rounded(net, images, labels), images, labels, " bf16", skipped)
    assert list(found) == ["program bf16", "layers bf16"] and not skipped


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
