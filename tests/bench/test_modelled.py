"""The model of a card: its arithmetic by hand, and that nothing in it looks measured."""

import pytest

from fl.errors import ConfigError
from sparsefl.bench import card, modelled
from sparsefl.bench.card import RTX4090, Pass


def test_a_pass_is_bound_by_the_slower_of_two():
    """10 TFLOP on 50 TFLOP/s is .2 s; 9 TB at .9 TB/s 10 s. Half the density halves what CSR computes."""
    computing = Pass(10e12, 1e6, 1e6, weight=False)
    assert card.dense(RTX4090, computing, RTX4090.tf32) == pytest.approx(0.2 + 2.5e-6)
    assert card.csr(RTX4090, computing, 0.5) == pytest.approx(5e12 / 17.5e12 + 2.5e-6)
    assert card.csr(RTX4090, computing._replace(weight=True), 0.5) == pytest.approx(5e12 / 8.8e12 + 2.5e-6)
    reading = Pass(1e6, 0.0, 9e12, weight=False)
    assert card.dense(RTX4090, reading, RTX4090.tf32) == pytest.approx(10, rel=1e-6)
    assert card.bitmap(RTX4090, reading, 0.5) == pytest.approx(10 * (0.5 + 1 / 32), rel=1e-6)


def test_passes_of_lenet_count_its_flop():
    """Five layers, of which the first has no input gradient; forward: 2 weights * pixels * batch."""
    found = list(card.passes(modelled.captured("lenet5"), 2))
    assert len(found) == 14 and sum(p.weight for p in found) == 5
    weights = 6 * 25, 16 * 150, 120 * 400, 84 * 120, 10 * 84
    pixels = 28 * 28, 10 * 10, 1, 1, 1
    assert [p.flop for p in found if p.weight] == [
        2 * 2 * w * n for w, n in zip(weights, pixels, strict=True)
    ]


def test_a_plan_is_sparse_only_where_that_wins():
    rows = list(modelled.run(["resnet18"], [128], [0.5, 0.1], "rtx4090"))
    by = {(row["density"], row["name"]): row for row in rows}
    for density in (0.5, 0.1):
        plan, ways = by[density, "plan"]["model_ms"], ("dense tf32", "csr", "bitmap")
        assert plan <= by[density, "dense tf32"]["model_ms"]
        assert plan <= 1.06 * min(by[density, way]["model_ms"] for way in ways)
    assert by[0.1, "plan"]["vs_tf32"] > 1.5 > by[0.5, "plan"]["vs_tf32"]
    assert not any("median_ms" in row for row in rows) and all(
        "(model)" in modelled.told(row) for row in rows
    )


def test_hours_of_every_algorithm():
    rows = list(modelled.experiments("rtx4090"))
    assert len(rows) == 27 and all(row["group_hours"] > 0 for row in rows)
    sam = {row["algorithm"]: row["steps"] for row in rows if row["preset"] == "cifar10"}
    assert sam["dfedsam"] == 2 * sam["dispfl"]


def test_a_card_without_a_model_is_refused():
    with pytest.raises(ConfigError, match="--device: expected rtx4090, with --model-only, got h100"):
        modelled.command(True, "h100", None, None, None, None)
    with pytest.raises(ConfigError, match="with --model-only, got rtx4090"):
        modelled.command(False, "rtx4090", None, None, None, None)
