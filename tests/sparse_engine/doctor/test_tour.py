"""The tour checks itself, and says so when something is wrong."""

from io import StringIO

import pytest
import torch
from rich.console import Console

from sparse_engine.doctor import tour
from sparse_engine.nn.bridge import prunable


def show(width=8):
    console = Console(record=True, width=120, file=StringIO())
    return tour.run(console, width), console.export_text()


def test_network_has_resnet18s_weights():
    with torch.device("meta"):
        weights = prunable(torch.nn.ModuleList([tour.Block(64, 128)]))
    assert [tuple(w.shape) for w in weights.values()] == [(128, 64, 3, 3), (128, 128, 3, 3)]
    assert sum(w.numel() for w in prunable(tour.network(64)).values()) == 10_992_320


def test_every_result_is_right():
    threads = torch.get_num_threads()
    code, text = show()
    assert code == 0 and "12 results checked against dense tensors with masks: ok" in text
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize(
    ("name", "result"),
    [
        ("average", "average"),
        ("rigl", "RigL"),
        ("prune_pqi", "pruning"),
    ],
)
def test_a_wrong_result_is_named(monkeypatch, name, result):
    monkeypatch.setattr(tour, name, lambda state, *_: state)  # does nothing
    code, text = show()
    assert code == 1 and f"FAILED: {result} at density 0.5" in text
    assert "ok" not in text.splitlines()[-1]
