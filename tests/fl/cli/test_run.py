"""`sparsefl run` from the outside: what they print, what they return, how they stop."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fl import units
from fl.cli import display, exits
from fl.cli.app import app
from fl.run import runs
from fl.run.rundir import METRICS, read_jsonl

ROOT = Path(__file__).parents[3]
QUICK = ("--set", "num_rounds=2", "--set", "training.epochs=0")


def sparsefl(*args):
    return CliRunner().invoke(app, [str(arg) for arg in args], prog_name="sparsefl")


def test_a_run_prints_lines_and_a_table(tiny_file, tmp_path):
    done = sparsefl("run", tiny_file, "--out", tmp_path / "run", "--workers", 1)
    assert done.exit_code == 0, done.output
    assert "tiny: da_dpfl on digits, small_cnn (sparse kernels), 4 clients, 5 rounds" in done.output
    for t in range(5):
        assert f"round    {t}/4  accuracy" in done.output
    for row in (
        "test accuracy, best round",
        "bytes sent",
        "training FLOP",
        "time, modelled",
        "energy, modelled",
    ):
        assert row in done.output
    assert "not measured" in done.output and str(tmp_path / "run") in done.output.replace("\n", "")


def test_a_run_that_stops_early_says_so(tiny_file, tmp_path):
    soon = ("--set", "run.patience=1", "--set", "run.min_gain=0.9")
    done = sparsefl("run", tiny_file, "--out", tmp_path / "run", "--workers", 1, *soon)
    assert done.exit_code == 0, done.output
    why = "accuracy_mean has not risen by more than 0.9 for 1 round"
    told = " ".join(done.output.split())
    assert f"stopped early, after round 1: {why}" in told
    assert f"tiny: da_dpfl, 2 of 5 rounds, stopped early: {why}" in told
    assert "Not all rounds:" in (tmp_path / "run" / "report.html").read_text()
    refused = sparsefl("run", tiny_file, "--out", tmp_path / "other", *soon, "--baseline", "dense")
    assert refused.exit_code == 2 and "run.patience: expected none for a comparison" in refused.output
    assert not (tmp_path / "other").exists()


def test_runs_have_a_default_place(tiny_file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert sparsefl("run", tiny_file, *QUICK).exit_code == 0
    (path,) = (tmp_path / "runs").iterdir()
    assert path.name.startswith("tiny-2") and (path / "summary.json").exists()


def test_resume_and_baseline(tiny_file, tmp_path):
    sparsefl("run", tiny_file, "--out", tmp_path / "run", *QUICK)
    (tmp_path / "run" / "summary.json").unlink()
    done = sparsefl("run", "--resume", tmp_path / "run", "--baseline", "dense")
    assert done.exit_code == 0, done.output
    assert "dense kernels" in done.output and "not measured" not in done.output
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["baseline"]["kernels"] == "dense"
    for row, key in (("best round", "accuracy_best"), ("last round", "accuracy_last")):  # of the twin, too
        line = next(line for line in done.output.splitlines() if f"test accuracy, {row}" in line)
        assert units.percent(summary["baseline"][key]) in line.split("│")[3]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "expected either a configuration"),
        (["demo", "--resume", "x"], 2, "expected either a configuration"),
        (["--resume", "x", "--set", "seed=1"], 2, "expected --resume alone"),
        (["--resume", "x", "--out", "y"], 2, "expected --resume alone"),
        (["demo", "--executor", "cloud"], 2, "--executor: expected one of ['local', 'ray'], got 'cloud'"),
        (["demo", "--address", "auto"], 2, "address: expected one for --executor ray only, got 'auto'"),
        (["demo", "--workers", "0"], 2, "--workers: expected at least 1, got 0"),
        (["demo", "--baseline", "sparse"], 2, "--baseline: expected dense or fp32, got 'sparse'"),
        (["demo", "--log", "csv,paper"], 2, "'wandb', 'mlflow'], got 'paper'"),
        (["demo", "--set", "trainig.lr=1"], 2, "did you mean 'training'?"),
        (["dmeo"], 2, "did you mean 'demo'?"),
        (["--resume", "nowhere"], 1, "expected the directory of a run, got nowhere"),
        (
            ["demo", "--set", "data.name=nobody", "--set", "data.root=/nowhere"],
            1,
            "nobody: expected /nowhere/nobody.npz",
        ),
    ],
)
def test_what_goes_wrong_is_one_sentence(arguments, code, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = sparsefl("run", *arguments)
    assert done.exit_code == code and message in done.output and "Traceback" not in done.output
    assert not list(tmp_path.iterdir())


def test_divergence_is_one_sentence(tiny_file, tmp_path):
    done = sparsefl("run", tiny_file, "--out", tmp_path / "run", "--set", "training.lr=1e30")
    assert done.exit_code == 1 and "lower training.lr" in done.output


def test_ctrl_c_stops_cleanly(tiny_file, tmp_path):
    path = tmp_path / "run"
    process = subprocess.Popen(
        [sys.executable, "-m", "fl", "run", str(tiny_file), "--out", str(path), "--set", "num_rounds=100000"],
        cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    until = time.monotonic() + 120
    while not (path / "checkpoint" / "round-00000").exists() and time.monotonic() < until:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"stopped; continue with: sparsefl run --resume {path}" in output
    assert max((path / "checkpoint").iterdir()).name == f"round-{len(read_jsonl(path / METRICS)) - 1:05}"


def test_sigterm_is_like_ctrl_c():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), exits.stopped_by_signals():
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)
    assert signal.getsignal(signal.SIGTERM) == before


def test_bars_on_a_terminal(tiny, tmp_path):
    from rich.console import Console

    console = Console(force_terminal=True, width=150, file=open(tmp_path / "out", "w"))  # noqa: SIM115
    listener = display.for_console(console)
    assert isinstance(listener, display.Bars)
    runs.start(tiny("num_rounds=2"), tmp_path / "run", runs.Options(1, listener))
    console.file.close()
    text = (tmp_path / "out").read_text()
    for part in ("rounds", "round 1", "wave", "clients", "accuracy", "density", "sent", "2/2"):
        assert part in text


def test_tensorboard_is_asked_for_by_name(tiny_file, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    done = sparsefl("run", tiny_file, "--out", tmp_path / "run", "--log", "tensorboard")
    assert done.exit_code == 1 and "pip install 'sparsefl[tensorboard]'" in done.output.replace("\n", " ")
    assert not (tmp_path / "run").exists()


def test_markup_of_users_is_printed_as_it_is(tiny_file, tmp_path):
    """And report.html is there whatever is printed."""
    path = tmp_path / "x[/red] :smile:"
    done = sparsefl("run", tiny_file, *QUICK, "--set", "description='[/bold] <b>'", "--out", path)
    assert done.exit_code == 0, done.output
    assert f"the run is in {path}\n" in done.output and (path / "report.html").exists()


def test_a_name_that_leaves_the_directory_is_refused_before_anything_is_made(
    tiny_file, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    for name in ("../../x", "/tmp/x", "x[/red]"):
        done = sparsefl("run", tiny_file, "--set", f"name={name}")
        assert done.exit_code == 2 and "name: expected letters, digits" in done.output
    assert not list(tmp_path.iterdir())


def test_overwrite_and_allow_mixed_are_options(tiny_file, tmp_path):
    assert sparsefl("run", tiny_file, *QUICK, "--out", tmp_path / "run").exit_code == 0
    done = sparsefl("run", tiny_file, *QUICK, "--out", tmp_path / "run")
    assert done.exit_code == 1 and "--overwrite" in done.output
    assert sparsefl("run", tiny_file, *QUICK, "--out", tmp_path / "run", "--overwrite").exit_code == 0
    assert sparsefl("run", "--resume", tmp_path / "run", "--allow-mixed").exit_code == 0
    for wrong in (["demo", "--allow-mixed"], ["--resume", tmp_path / "run", "--overwrite"]):
        assert sparsefl("run", *wrong).exit_code == 2
