"""`sparsefl energy` and `--energy` from the outside: help, errors, and machines without a meter."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from meters import measuring
from typer.testing import CliRunner

from fl.cli.app import app
from fl.run.meters import energy
from fl.run.meters.energy import CPU, GPU, Energy, How
from fl.run.rundir import METRICS, read_jsonl
from sparsefl.bench import energy as bench_energy

ROOT = Path(__file__).parents[3]
QUICK = ("--set", "num_rounds=2", "--set", "training.epochs=0", "--workers", 1)


def sparsefl(*args):
    return CliRunner().invoke(app, [str(arg) for arg in args], prog_name="sparsefl")


def said(done):
    return " ".join(re.sub("[│╭╮╰╯─]", " ", done.output).split())


@pytest.fixture
def nothing(monkeypatch):
    """A machine without meters."""
    missing = {CPU: "no file", GPU: "no library"}
    for module in (energy, bench_energy):
        monkeypatch.setattr(module, "opened", lambda how: Energy({}, missing))


def test_help():
    told = said(sparsefl("energy", "--help"))
    assert all(f" {command} " in told for command in ("run", "bench", "meters"))
    for command in (["run"], ["compare"], ["bench", "models"]):
        assert "--energy" in sparsefl(*command, "--help").output
    for option in ("--gpu", "--idle", "--seconds", "--blocks"):
        assert option in sparsefl("energy", "bench", "--help").output
    assert "did you mean 'bench'?" in said(sparsefl("energy", "bnech"))


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["run"], 2, "expected either a configuration (a preset or a file) or --resume DIR"),
        (["run", "demo", "--idle", "-1"], 2, "--idle: expected seconds from 0 on, got -1"),
        (["run", "demo", "--idle", "nan"], 2, "--idle: expected seconds from 0 on, got nan"),
        (
            ["run", "demo", "--gpu", "0"],
            2,
            "--gpu: expected a UUID, GPU-..., as `nvidia-smi -L` has it, got '0",
        ),
        (["bench", "--model", "nobody"], 2, "--model: expected names out of"),
        (["bench", "--density", "2"], 2, "--density: expected numbers above 0, up to 1, got '2'"),
        (["bench"], 1, "energy of CPU: no meter: no file; energy of GPU: no meter: no library"),
        (["meters"], 1, "energy of CPU: no meter: no file energy of GPU: no meter: no library"),
    ],
)
def test_what_goes_wrong_is_one_sentence(nothing, arguments, code, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = sparsefl("energy", *arguments)
    assert done.exit_code == code and message in said(done) and "Traceback" not in done.output
    assert not list(tmp_path.iterdir())


def test_a_window_that_is_too_short_is_refused(monkeypatch):
    monkeypatch.setattr(bench_energy, "opened", measuring(1.0))
    done = sparsefl("energy", "bench", "--seconds", 5)
    assert done.exit_code == 2 and "--seconds: expected at least 10 per window, got 5" in said(done)


@pytest.mark.parametrize("command", [("energy", "run"), ("run", "--energy")])
def test_without_a_meter_a_run_says_so(nothing, command, tiny_file, tmp_path):
    done = sparsefl(*command, tiny_file, "--out", tmp_path / "run", *QUICK)
    assert done.exit_code == 0, done.output
    told = said(done)
    assert "energy of CPU: no meter: no file" in told and "energy of GPU: no meter: no library" in told
    assert re.search(r"round 1/1 .* no meter left", told) and "energy, measured no meter" in told.replace(
        "│", ""
    )
    assert "energy, modelled" in told
    assert {line["energy_j"] for line in read_jsonl(tmp_path / "run" / METRICS)} == {None}
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["energy_j"] is None
    assert "no meter: no library" in (tmp_path / "run" / "report.html").read_text()


def test_joules_are_shown(monkeypatch, tiny_file, tmp_path):
    monkeypatch.setattr(energy, "opened", measuring(20.0, 100.0, 130.0, 20.0))
    done = sparsefl("energy", "run", tiny_file, "--out", tmp_path / "run", "--idle", 1, *QUICK)
    told = said(done)
    assert done.exit_code == 0 and "energy of CPU: a steady meter" in told
    assert re.search(r"round 0/1 .* 100 J left", told) and re.search("energy, measured 230 J", told)


def test_a_comparison_has_joules(monkeypatch, tiny_file, tmp_path):
    monkeypatch.setattr(energy, "opened", measuring(20.0, 100.0, 130.0, 20.0))
    names = ("--algorithms", "da_dpfl,dispfl", "--out", tmp_path / "all")
    done = sparsefl("compare", tiny_file, "--energy", *names, *QUICK)
    assert done.exit_code == 0, done.output
    assert said(done).count("energy of CPU: a steady meter") == 1  # the same for both runs
    told = json.loads((tmp_path / "all" / "comparison.json").read_text())
    assert {one["figures"]["energy_j"]["mean"] for one in told["algorithms"].values()} == {230}
    assert told["environment"][CPU] == "a steady meter" and told["environment"][GPU] == "no meter: no board"
    assert "| 230 J |" in (tmp_path / "all" / "comparison.md").read_text()


def test_options_are_handed_on(monkeypatch):
    given = []
    monkeypatch.setattr("fl.cli.run.run", lambda console, arguments: given.append(arguments) or 0)
    uuids = ("--gpu", "GPU-1", "--gpu", "GPU-2")
    assert sparsefl("energy", "run", "demo", *uuids, "--idle", 3, "--baseline", "dense").exit_code == 0
    assert sparsefl("run", "demo", "--energy").exit_code == sparsefl("run", "demo").exit_code == 0
    assert [one.energy for one in given] == [How(("GPU-1", "GPU-2"), 3.0), How(), None]
    assert given[0].source == "demo" and given[0].baseline == "dense"


def test_after_a_stop_the_command_asks_again(monkeypatch, tiny_file, tmp_path):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(energy, "opened", stop)
    done = sparsefl("run", tiny_file, "--energy", "--out", tmp_path / "run", *QUICK)
    assert done.exit_code == 130
    assert said(done).endswith(f"sparsefl run --resume {tmp_path / 'run'} --energy")


def test_this_machine_is_asked_for_real():
    """In a process of its own, with a folder of libraries that has none."""
    command = [sys.executable, "-m", "fl", "energy", "meters", "--gpu", "GPU-nobody"]
    done = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True)
    assert done.returncode in (0, 1) and "Traceback" not in done.stderr
    assert "energy of GPU: no meter: " in done.stdout and "energy of CPU: " in done.stdout
