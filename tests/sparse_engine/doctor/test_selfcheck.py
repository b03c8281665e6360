"""The self-check covers every operation and every native variant; environment() tells a checkout."""

import subprocess
from pathlib import Path

from sparse_engine.doctor.environment import commit, environment
from sparse_engine.doctor.selfcheck import OPERATIONS, self_check
from sparsefl import kernels
from sparsefl.kernels import native

ROOT = Path(__file__).parents[3]


def test_covers_every_native_operation():
    packages = {path.parent.name for path in Path(kernels.__path__[0]).glob("*/_cpu.py")}
    assert set(OPERATIONS) == packages


def test_every_native_variant_is_right():
    checks = list(self_check())
    assert {(check.op, check.variant) for check in checks} == {
        (op, f"cpu:{isa}") for op in OPERATIONS for isa in native.isas()
    }
    assert not [check for check in checks if check.problem]


def test_an_error_is_a_problem(monkeypatch):
    def broken():
        if native.isa() == "baseline" and calls:
            raise ValueError("no")
        calls.append(1)
        return []

    calls = []
    monkeypatch.setitem(OPERATIONS, "pack", broken)
    problems = {check.variant: check.problem for check in self_check() if check.op == "pack"}
    assert problems["cpu:baseline"] == "ValueError: no"


def test_commit_of_a_checkout():
    if not (ROOT / ".git").exists():
        assert commit() is None
        return
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout
    assert head.startswith(commit().removesuffix("+changes"))


def test_no_commit_of_an_installed_copy(monkeypatch, tmp_path):
    monkeypatch.setattr(
        "sparse_engine.doctor.environment.__file__", str(tmp_path / "sparse_engine" / "doctor" / "x.py")
    )
    assert commit() is None


def test_environment_names_overrides(monkeypatch):
    monkeypatch.setenv("SPARSE_THREADS", "3")
    facts = environment()
    assert facts["threads"] == "3" and "SPARSE_THREADS=3" in facts["overrides"]
