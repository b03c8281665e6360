"""The benchmarks of layers and models, on small cases."""

import sys

import pytest
import torch

from bench import layers, models


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
    assert {"torch", "torch channels_last", "sparsefl weight gradient"} <= names
    summary = layers.summarise(rows)
    assert set(summary["conv3x3, batch 8"]["0.5"]) == {"vs_dense", "worst"}
    assert "vs_csr" in summary["linear, batch 8"]["0.9"]


def test_models_give_realisation(monkeypatch):
    monkeypatch.setitem(models.MODELS, "small_cnn", (10, (3, 8, 8)))
    rows = list(models.run(("small_cnn",), (4,), (0.5,), threads=1, repeats=1))
    (cell,) = models.summarise(rows)["small_cnn, batch 4"].values()
    assert cell["realisation"] == pytest.approx(cell["vs_dense"] / rows[0]["flop_ratio"])
    assert {row["name"] for row in rows} == {"sparsefl", "torch", "torch channels_last", "masked torch"}
