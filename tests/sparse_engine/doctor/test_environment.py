"""sparse_engine.environment: what a result's bits depend on."""

from importlib.metadata import version

import pytest

import sparse_engine as se
from sparse_engine.choice import files, plan, rule
from sparse_engine.choice.plan import Plan, use_plan
from sparsefl.kernels import native, use_backend


def test_numerics_names_instruction_set_plan_and_versions():
    found = se.numerics()
    assert list(found) == ["instruction set", "tile", "plan", "torch", "numpy", "sparsefl"]
    assert found["instruction set"] == native.isa()
    assert [found[name] for name in ("torch", "numpy", "sparsefl")] == [
        version(name) for name in ("torch", "numpy", "sparsefl")
    ]


@pytest.mark.parametrize("isa", native.isas())
def test_numerics_follows_the_instruction_set_in_use(isa):
    with se.use_isa(isa):
        assert se.numerics()["instruction set"] == isa


def test_numerics_names_no_instruction_set_where_no_native_kernel_runs(monkeypatch):
    with use_backend("reference"):
        assert se.numerics()["instruction set"] == "none (backend reference)"
    monkeypatch.setattr(native, "_extension", None)
    assert se.numerics()["instruction set"] == "none (not built)"


def test_numerics_tells_plans_apart_by_what_they_choose(tmp_path):
    def of(plan):
        with use_plan(plan):
            return se.numerics()["plan"]

    a, b = {"forward x": "dense", "forward y": "sparse"}, {"forward x": "sparse", "forward y": "sparse"}
    assert of(Plan()) == "built-in rule"
    assert of(Plan(a)) == of(Plan(dict(reversed(a.items())))) != of(Plan(b))
    files.write(tmp_path / "elsewhere.json", Plan(a).text())
    assert of(plan.from_file(tmp_path / "elsewhere.json")) == of(Plan(a))
    assert of(Plan(rule=rule.named("zen"))) == "built-in rule (zen)"
    assert of(Plan(a, rule=rule.named("zen"))) != of(Plan(a))


def test_each_instruction_set_has_the_plan_of_its_own_file(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("SPARSE_PLAN", raising=False)
    monkeypatch.setattr(plan, "_defaults", {})
    files.write(files.machine_file(), Plan({"forward x": "dense"}).text())
    assert se.numerics()["plan"].startswith("measured")
    with se.use_isa("baseline"):
        assert se.numerics()["plan"].startswith("built-in rule")
