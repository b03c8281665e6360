"""The benchmark of the kernels, on a network of a few thousand weights."""

import json
from math import prod

import pytest
import torch

from sparsefl.bench import __main__ as command
from sparsefl.bench import cases, ops, report

RESNET18 = cases.resnet18_shapes()
TINY = {"conv": (8, 3, 3, 3), "wide": (16, 8, 3, 3), "linear": (10, 16)}


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    monkeypatch.setattr(cases, "resnet18_shapes", lambda: TINY)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def test_resnet18_has_the_papers_size():
    assert sum(prod(shape) for shape in RESNET18.values()) == 10_992_320


def test_every_operation_gets_rows_and_a_summary():
    rows = list(ops.run((0.5,), threads=1, repeats=1, only=None))
    summary = ops.summarise(rows)
    assert {"masked_sgd_", "masked_average", "pqi", "select", "csr", "pack", "unpack", "drift"} <= set(
        summary
    )
    for op, cells in summary.items():
        names = {row["name"] for row in rows if row["op"] == op}
        assert "sparsefl" in names and len(names) > 1  # a rival in every contest
        assert any(key.startswith("vs_") for key in cells["0.5"])
    assert all(row["median_ms"] > 0 for row in rows)


def test_a_wrong_result_gets_no_time(monkeypatch):
    monkeypatch.setattr(ops, "masked_sgd_", lambda w, *_, **__: w.add_(torch.rand_like(w)))
    with pytest.raises(AssertionError, match="gets no time"):
        list(ops.run((0.5,), threads=1, repeats=1, only="masked_sgd_"))


def test_the_command_writes_the_agreed_shape(tmp_path, capsys):
    path = tmp_path / "ops.json"
    assert command.main(["ops", "--quick", "--op", "pqi", "--json", str(path)]) == 0
    result = json.loads(path.read_text())
    assert set(result) == {"meta", "rows", "summary"} and "vs_torch" in result["summary"]["pqi"]["0.5"]
    assert {"commit", "cpu", "versions", "threads"} <= set(result["meta"])
    assert command.main(["table", str(path)]) == 0
    assert "| pqi |" in capsys.readouterr().out
    assert command.main(["ops", "--quick", "--op", "nothing"]) == 2


def test_tables_come_from_results():
    meta = {
        "cpu": "c",
        "instruction_set": "i",
        "threads": 1,
        "versions": {"torch": "t"},
        "commit": "x",
        "date": "d",
    }
    text = report.markdown(
        {"meta": meta, "summary": {"op": {"0.5": {"vs_torch": 2.0}, "0.1": {"vs_torch": 9.0}}}}
    )
    assert "| op | 0.5 | 2.00 |\n| op | 0.1 | 9.00 |" in text and "commit x" in text


def test_a_table_goes_between_its_marks(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- bench ops -->\nold\n<!-- end -->\nb\n")
    report.insert("new", page, "ops")
    assert page.read_text() == "a\n<!-- bench ops -->\nnew\n<!-- end -->\nb\n"
    with pytest.raises(ValueError, match="expected the marks"):
        report.insert("new", page, "layers")
