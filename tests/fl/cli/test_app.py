"""The command line: what it offers, what it hands on, what it answers when something is wrong."""

import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fl.cli.app import app
from sparse_engine.doctor import selfcheck
from sparsefl.kernels import native

ROOT = Path(__file__).parents[3]


def sparsefl(*args):
    return CliRunner().invoke(app, args, prog_name="sparsefl")


def test_help_lists_the_commands():
    done = sparsefl("--help")
    assert done.exit_code == 0
    for command in ("run", "compare", "list", "demo", "tour", "doctor", "simulate", "bench", "energy"):
        assert f" {command} " in done.output


def test_help_waits_for_no_torch():
    code = "import sys, fl.cli; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_python_m_fl():
    done = subprocess.run([sys.executable, "-m", "fl", "--help"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and "Usage: sparsefl" in done.stdout


def test_version():
    done = sparsefl("--version")
    assert done.exit_code == 0 and done.output == f"sparsefl {metadata.version('sparsefl')}\n"


@pytest.mark.parametrize(
    ("word", "meant"),
    [("rnu", "run"), ("train", "run"), ("trian", "run"), ("comparee", "compare"), ("simulat", "simulate")],
)
def test_an_unknown_command_is_answered_with_the_nearest(word, meant):
    done = sparsefl(word)
    said = " ".join(done.output.replace("│", " ").split())
    assert done.exit_code == 2 and f"got '{word}'; did you mean '{meant}'?" in said
    assert "did you mean" not in sparsefl("xyzzy").output and sparsefl("xyzzy").exit_code == 2


def test_demo_is_run_demo(monkeypatch):
    given = []
    monkeypatch.setattr("fl.cli.run.run", lambda console, arguments: given.append(arguments) or 7)
    options = ("--set", "seed=3", "--workers", "2", "--out", "x", "--baseline", "dense")
    assert sparsefl("demo", *options).exit_code == 7 and sparsefl("run", "demo", *options).exit_code == 7
    assert given[0] == given[1] and given[0].source == "demo" and list(given[0].changes) == ["seed=3"]
    assert sparsefl("demo", "--help").output == sparsefl("run", "--help").output
    assert sparsefl("demo", "--wrong").exit_code == 2


@pytest.mark.parametrize("args", [["ops", "--json", "x.json", "--quick"], ["ops", "--aot"], ["--help"], []])
def test_bench_hands_everything_on(monkeypatch, args):
    given = []
    monkeypatch.setattr("sparsefl.bench.__main__.main", lambda argv: given.append(argv) or 3)
    assert sparsefl("bench", *args).exit_code == 3
    assert given == [args]


def test_doctor_is_content_here():
    done = sparsefl("doctor")
    assert done.exit_code == 0, done.output
    for fact in ("python", "torch", "triton", "sparsefl", "cpu", "cores", "threads", "gpu", "commit"):
        assert fact in done.output
    assert native.isa() in done.output and "self-check ok" in done.output


def test_doctor_names_a_wrong_kernel(monkeypatch):
    right = selfcheck.OPERATIONS["pack"]
    calls = []

    def wrong():
        calls.append(1)
        return [x + (len(calls) > 1) for x in right()]  # the reference comes first

    monkeypatch.setitem(selfcheck.OPERATIONS, "pack", wrong)
    done = sparsefl("doctor")
    assert done.exit_code == 1
    assert "FAILED: pack on cpu:baseline: result 0 differs" in done.output.replace("\n", " ")
    assert "self-check ok" not in done.output


def test_doctor_says_when_nothing_is_built(monkeypatch):
    monkeypatch.setattr(native, "_extension", None)
    done = sparsefl("doctor")
    assert done.exit_code == 1 and "not built" in done.output


def test_doctor_says_when_the_environment_is_wrong(monkeypatch):
    monkeypatch.setenv("SPARSE_THREADS", "many")
    done = sparsefl("doctor")
    assert done.exit_code == 2 and "SPARSE_THREADS" in done.output


def test_doctor_says_whether_avx512_is_in_use(monkeypatch):
    if "avx512" not in native.isas():
        assert re.search("avx-512 +not on this machine", sparsefl("doctor").output)
        return
    with native.use_isa("avx512"):
        assert re.search("avx-512 +in use", sparsefl("doctor").output)
    with native.use_isa("baseline"):
        assert re.search(
            "avx-512 +not in use, though the machine has it: baseline", sparsefl("doctor").output
        )


def test_doctor_names_variables_without_meaning(monkeypatch):
    monkeypatch.setenv("SPARSE_THREAD", "2")
    assert "SPARSE_THREAD has no meaning here" in sparsefl("doctor").output
