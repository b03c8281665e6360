"""The benchmark of instruction sets, on small cases."""

import pytest
import torch

from sparsefl.bench import isa, isa_around
from sparsefl.bench.layers import Shape
from sparsefl.kernels import native


@pytest.fixture(autouse=True)
def threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_every_kernel_and_direction_runs_on_every_instruction_set(monkeypatch):
    monkeypatch.setattr(isa, "CONVS", (Shape("conv", 8, 8, 6),))
    monkeypatch.setattr(isa, "LINEARS", (Shape("linear", 24, 10, 1, 1),))
    monkeypatch.setattr(isa, "BATCHES", (3,))
    monkeypatch.setattr(isa, "CONV_BATCH", 4)
    monkeypatch.setattr(isa_around, "IMAGES", ((32, 4, 3),))
    rows = list(isa.run(("conv", "linear", "around"), (0.5,), repeats=1))
    for row in rows:
        assert isa.told(row).startswith(row["kernel"])
    kernels = {(row["kernel"], row["direction"], row["density"]) for row in rows}
    for direction in ("forward", "input_gradient", "weight_gradient"):
        assert {("winograd", direction, 1.0), ("dense", direction, 1.0)} <= kernels
        assert {("sparse", direction, 0.5), ("sparse linear", direction, 0.5)} <= kernels
    assert {(row["kernel"], row["isa"]) for row in rows} == {
        (kernel, name) for kernel, _, _ in kernels for name in native.isas()
    }


def test_the_summary_by_hand():
    """Two cases: 2 and 8 times faster, 4 in the geometric mean, 2 at worst."""
    row = {"kernel": "sparse", "direction": "forward", "density": 0.5}
    times = {"a": {"baseline": 4.0, "avx2": 2.0}, "b": {"baseline": 8.0, "avx2": 1.0}}
    rows = [row | {"case": c, "isa": i, "median_ms": t} for c, by in times.items() for i, t in by.items()]
    cell = isa.summarise(rows)["sparse forward"]["0.5"]
    assert cell == {"avx2_over_baseline": pytest.approx(4.0), "avx2_over_baseline_worst": 2.0}


@pytest.mark.skipif(len(native.isas()) < 2, reason="one instruction set: nothing to compare")
def test_a_wrong_result_gets_no_time():
    wrong = {name: torch.full((3,), float(k)) for k, name in enumerate(native.isas())}
    case = isa.Case("sparse", "forward", "c", 0.5, lambda: wrong[native.isa()])
    with pytest.raises(AssertionError, match="a wrong result gets no time"):
        isa._check(case)
