"""comparison.csv: every figure, in numbers that a program reads back exactly."""

import csv
import io

import comparisons
import pytest

from fl.compare import report, results


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    path = tmp_path_factory.mktemp("csv") / "all"
    accuracies = {"da_dpfl": [[0.2, 0.6], [0.3, 0.7]], "b": [[0.1, 0.5]], "c": [[]]}
    comparisons.make(path, accuracies, ["b:training.lr=0.25"], target=0.55)
    return path


def test_rows_are_those_of_comparison_json(made):
    told = report.write(made).to_json()
    rows = {row["name"]: row for row in csv.DictReader(io.StringIO((made / "comparison.csv").read_text()))}
    assert list(rows) == ["da_dpfl", "b", "c"]
    for name, one in told["algorithms"].items():
        for part, prefix in (("figures", ""), ("to_target", "target_")):
            for key, spread in (one[part] or {}).items():
                for of in ("mean", "sd"):
                    value = spread and spread[of]
                    cell = rows[name][f"{prefix}{key}_{of}"]
                    assert (float(cell) if cell else None) == value, (name, key, of)
    assert [rows[name]["training.lr"] for name in rows] == ["0.1", "0.25", "0.1"]
    counts = {name: [row[key] for key in ("planned", "finished", "reached")] for name, row in rows.items()}
    assert counts == {"da_dpfl": ["2", "2", "2"], "b": ["1", "1", "0"], "c": ["1", "0", "0"]}
    assert rows["da_dpfl"]["target_rounds_mean"] == "2.0" and rows["b"]["target_rounds_mean"] == ""
    assert rows["b"]["accuracy_best_sd"] == "" and rows["c"]["accuracy_best_mean"] == ""
    assert rows["b"]["algorithm"] == "da_dpfl"


def test_before_anything_ran(tmp_path):
    comparisons.make(tmp_path / "all", {"da_dpfl": [[]], "dispfl": [[]]})
    _, made = report.TABLES["csv"]
    head, *rows = csv.reader(io.StringIO(made(results.read(tmp_path / "all").to_json())))
    assert head[:5] == ["name", "algorithm", "planned", "finished", "reached"] and len(rows) == 2
    assert all(len(row) == len(head) for row in rows)
