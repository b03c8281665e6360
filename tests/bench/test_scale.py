"""bench scale: its figures follow from one another, and the summary says what the rows say."""

import json

import pytest

from sparsefl.bench import __main__ as bench
from sparsefl.bench import scale


@pytest.mark.parametrize("store", scale.STORES)
def test_a_row_is_measured(store):
    row = scale.measure(12, "mlp", store, rounds=2)
    assert row["clients_per_s"] * row["ms_per_client"] == pytest.approx(1e3)
    assert row["peak_mb"] >= row["base_mb"] > 0 and row["checkpoint_s"] > 0
    weights = 784 * 32 + 32 * 10
    bits = 3 * weights / 8  # a model's mask, the next one, the first one
    assert row["state_mb"] * 1e6 == pytest.approx(12 * (weights / 2 * 4 + bits + 42 * 4), rel=0.02)


def test_the_summary_compares_with_1000_clients():
    row = {"rss_over_state": 1.5, "checkpoint_s": 2.0}
    rows = [
        row | {"clients": k, "clients_per_s": 1e3 / ms, "ms_per_client": ms}
        for k, ms in ((1000, 2), (5000, 3))
    ]
    assert [cell["vs_1000"] for cell in scale.summarise(rows).values()] == [1, 1.5]
    assert "vs_1000" not in scale.summarise(rows[1:])["5000"]


def test_each_number_of_clients_has_a_process_of_its_own(tmp_path):
    path = tmp_path / "scale.json"
    assert (
        bench.main(["scale", "--clients", "11,13", "--network", "mlp", "--repeats", "1", "--json", str(path)])
        == 0
    )
    assert list(json.loads(path.read_text())["summary"]) == ["11", "13"]
    assert bench.main(["scale", "--network", "lenet"]) == 2
