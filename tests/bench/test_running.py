"""What benchmarks say while they run: whole lines with units in a log, one live line on a terminal."""

import json
import re
import threading
from io import StringIO

import pytest
from rich.console import Console

from fl.errors import Expected
from sparsefl.bench import authors, layers, models, ops, rounds, running, wire

ROW = {"model": "resnet18", "batch": 32, "density": 0.5, "name": "sparsefl", "median_ms": 4109.1706229999545}


def shown(**how):
    console = Console(file=StringIO(), width=60, color_system=None, **how)
    threads = threading.active_count()
    rows = [ROW, ROW | {"name": "[torch]"}]
    for row, wanted in zip(running.shown(iter(rows), models.told, console), rows, strict=True):
        assert row is wanted and threading.active_count() == threads  # nothing runs beside what is timed
    return console.file.getvalue()


def test_a_log_gets_whole_lines_with_units():
    first, second = shown().splitlines()
    assert first == "resnet18, batch 32, density 0.5: sparsefl 4.11 s" and "[torch]" in second


def test_a_terminal_gets_one_line_that_goes_away():
    text = shown(force_terminal=True)
    assert "sparsefl 4.11 s" in text and "[torch] 4.11 s" in text
    assert text.rstrip().endswith("\x1b[2K") or "\x1b[2K" in text.splitlines()[-1]  # erased at the end


@pytest.mark.parametrize(
    ("told", "row", "line"),
    [
        (ops.told, {"op": "pqi", "density": 0.2, "name": "torch", "median_ms": 0.25},
         "pqi, density 0.2: torch 250 µs"),
        (layers.told, {"shape": "64>64", "batch": 32, "sparsity": 0.8, "name": "torch", "median_ms": 12.345},
         "64>64, batch 32, sparsity 0.8: torch 12.3 ms"),
        (wire.told, {"model": "vgg11", "density": 0.5, "stage": "first", "name": "fp32", "bytes": 16_230_000,
         "encode_gbps": 1.23456}, "vgg11, density 0.5, first: fp32 16.2 MB, written at 1.23 GB/s"),
        (rounds.told, {"seed": 1, "round": 2, "kernels": "dense", "train_s": 1.23456, "wall_s": 2.0},
         "seed 1, round 2, dense kernels: 1.23 s of training, 2.00 s in all"),
        (authors.told, {"density": 0.5, "round": "usual", "name": "authors", "median_ms": 9421.5},
         "density 0.5, usual round: authors 9.42 s"),
    ],
)  # fmt: skip
def test_every_benchmark_tells_its_rows_in_words(told, row, line):
    assert told(row) == line and not re.search(r"\d\.\d{5}", line)


def test_a_quick_look_at_models_is_one_network_of_few_cases():
    names, batches, densities = models.QUICK
    assert len(names) * len(batches) * len(densities) <= 2 and set(names) <= set(models.MODELS)


def test_pieces_of_a_result_are_put_together_where_they_were_measured_alike(tmp_path):
    def finish(rows, **how):
        summarise = lambda rows: {"all": {"1": {"count": len(rows)}}}  # noqa: E731
        return running.finish(rows, {"name": ""}, summarise, tmp_path / "a.json", **how)

    finish([ROW], append=True)
    finish([ROW | {"density": 0.2}], append=True)
    made = json.loads((tmp_path / "a.json").read_text())
    assert [row["density"] for row in made["rows"]] == [0.5, 0.2]
    assert made["summary"]["all"]["1"]["count"] == 2
    with pytest.raises(Expected, match="measured alike, got another threads"):
        finish([ROW], append=True, threads=2)
    finish([ROW])
    assert len(json.loads((tmp_path / "a.json").read_text())["rows"]) == 1
