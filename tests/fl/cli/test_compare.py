"""`sparsefl compare`: runs what is left, stops and goes on; one that fails leaves the others alone."""

import json
import os
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console
from typer.testing import CliRunner

from fl import algorithms
from fl.algorithms import da_dpfl
from fl.cli import compare, compare_display
from fl.cli.app import app
from fl.cli.compare_display import Estimate
from fl.compare.plan import Run
from fl.run import history
from fl.run.rundir import METRICS, read_jsonl

QUICK = ("--set", "num_rounds=2", "--set", "training.epochs=0", "--workers", 1)
TWO = ("--algorithms", "da_dpfl,b=da_dpfl", "--set", "b:da_dpfl.max_wait=0")


def sparsefl(*args):
    return CliRunner().invoke(app, [str(arg) for arg in args], prog_name="sparsefl")


def told(path: Path):
    return json.loads((path / "comparison.json").read_text())


def everything(path: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


def states(path: Path):
    return {run["folder"]: run["state"] for run in told(path)["runs"]}


def interrupt_after(monkeypatch, rounds):
    """A real Ctrl-C when that many rounds are over."""
    real, left = compare_display.CompareLines.round_finished, [rounds]

    def heard(self, record):
        real(self, record)
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(compare_display.CompareLines, "round_finished", heard)


@pytest.fixture(scope="module")
def whole(tiny_file, tmp_path_factory):
    """A comparison that nobody disturbed, and what it printed."""
    path = tmp_path_factory.mktemp("whole") / "all"
    done = sparsefl("compare", tiny_file, *TWO, "--seeds", "1,b=2", *QUICK, "--out", path)
    assert done.exit_code == 0, done.output
    return path, done.output


def test_one_display_one_table_one_report(whole):
    path, output = whole
    assert f"tiny: da_dpfl, b: 3 runs, in {path}" in output
    places = [line.split("  ")[:2] for line in output.splitlines() if "round    1/1" in line]
    assert places == [["run 1/3", "da_dpfl, seed 0"], ["run 2/3", "b, seed 0"], ["run 3/3", "b, seed 1"]]
    assert output.count("left") == 6 and "run 3/3  b, seed 1: accuracy" in output
    for word in ("algorithm", "seeds", "sparsity", "measured", "modelled", "Target accuracy", "reached"):
        assert word in output
    assert f"the report is {path / 'report.html'}" in output
    assert set(states(path)) == {"da_dpfl-seed-0", "b-seed-0", "b-seed-1"}
    assert set(states(path).values()) == {"finished"} and told(path)["complete"]
    assert read_jsonl(path / "b-seed-1" / METRICS)[0]["max_wait"] == 0
    assert (path / "comparison.md").read_text().startswith("# tiny: da_dpfl, b\n")


def test_a_table_alone_on_standard_output(whole, tmp_path):
    path = shutil.copytree(whole[0], tmp_path / "all")
    for form, name in (("csv", "comparison.csv"), ("latex", "comparison.tex"), ("markdown", "comparison.md")):
        done = sparsefl("compare", "--resume", path, "--table", form)
        assert done.exit_code == 0 and done.stdout == (path / name).read_text()
        assert "the report is" in done.stderr
    wrong = sparsefl("compare", "--resume", path, "--table", "excel")
    assert (
        wrong.exit_code == 2 and "expected one of ['markdown', 'csv', 'latex'], got 'excel'" in wrong.output
    )


def test_a_grid_runs_and_grows(tiny_file, tmp_path):
    path = tmp_path / "grid"
    done = sparsefl("compare", tiny_file, "--grid", "training.lr=0.05,0.1", *QUICK, "--out", path)
    assert done.exit_code == 0, done.output
    assert "differs: learning rate: da_dpfl-lr-0.05 0.05; da_dpfl-lr-0.1 0.1" in done.output
    more = sparsefl("compare", "--resume", path, "--grid", "training.lr=0.2", "--workers", 1)
    assert more.exit_code == 0 and "run 3/3" in more.output and "run 2/3" not in more.output, more.output
    assert list(told(path)["algorithms"]) == [f"da_dpfl-lr-{lr}" for lr in ("0.05", "0.1", "0.2")]
    assert set(states(path).values()) == {"finished"} and len(states(path)) == 3


def test_finished_runs_are_not_run_again(whole, tmp_path):
    path, _ = whole
    before = everything(path)
    done = sparsefl("compare", "--resume", path)
    assert done.exit_code == 0 and "3 runs, 3 of them finished" in done.output, done.output
    assert "round    0" not in done.output and everything(path) == before


def test_report_knows_a_comparison(whole):
    path, _ = whole
    before = everything(path)
    for name in ("report.html", "comparison.json", "comparison.md"):
        (path / name).unlink()
    done = sparsefl("report", path)
    assert done.exit_code == 0 and f"the report is {path / 'report.html'}" in done.output
    assert everything(path) == before


@pytest.mark.parametrize("rounds", [1, 2, 3])  # inside the first run, between the two, inside the second
def test_ctrl_c_and_on(tiny_file, tmp_path, monkeypatch, whole, same_results, rounds):
    path = tmp_path / "all"
    with monkeypatch.context() as patch:
        interrupt_after(patch, rounds)
        done = sparsefl("compare", tiny_file, *TWO, *QUICK, "--out", path)
    assert done.exit_code == 130, done.output
    assert f"stopped; continue with: sparsefl compare --resume {path}" in done.output
    assert sparsefl("report", path).exit_code == 0 and not told(path)["complete"]
    done = sparsefl("compare", "--resume", path, "--workers", 2)
    assert done.exit_code == 0 and done.output.count("round    ") == 4 - rounds, done.output
    for folder in ("da_dpfl-seed-0", "b-seed-0"):
        same_results(path / folder, whole[0] / folder)


def broken(state, t, env):
    if t == 1:
        raise TypeError("nobody expected this")
    return da_dpfl.run_round(state, t, env)


def test_who_fails_is_named_and_leaves_the_others_alone(tiny_file, tmp_path, monkeypatch):
    every = algorithms.registered() | {"broken": SimpleNamespace(**vars(da_dpfl) | {"run_round": broken})}
    monkeypatch.setattr(algorithms, "registered", lambda: every)
    path = tmp_path / "all"
    arguments = [
        "--algorithms", "broken,beer,wild=da_dpfl,odd=da_dpfl,da_dpfl",
        "--set", "topology.kind=ring", "--set", "topology.redraw=true", "--set", "num_rounds=2",
        "--set", "wild:training.lr=1e30",
        "--set", "odd:data.train_per_client=100000",
        "--out", path, "--workers", 1,
    ]  # fmt: skip
    done = sparsefl("compare", tiny_file, *arguments)
    assert done.exit_code == 1, done.output
    reasons = {
        "broken": "TypeError: nobody expected this",
        "beer": "topology.redraw: expected a fixed graph for beer",
        "wild": "lower training.lr",
        "odd": "data: expected at most",
    }
    table, _, _ = done.output.partition("Target accuracy")
    for name, why in reasons.items():
        assert f"{name}, seed 0 failed: " in done.output  # at once
        assert f"{name}, seed 0: failed: " in table and why in table, name  # and at the end
    cells = [line.split("│") for line in table.splitlines()]
    seeds = {row[1].strip(): row[2].strip() for row in reversed(cells) if len(row) > 3}  # of the first part
    assert seeds == {"broken": "0 of 1", "beer": "0 of 1", "wild": "0 of 1", "odd": "0 of 1", "da_dpfl": "1"}
    assert [run["state"] for run in told(path)["runs"]] == ["failed"] * 4 + ["finished"]
    assert "Traceback" in (path / "broken-seed-0" / "failed.txt").read_text()
    assert "Traceback" not in done.output
    page = (path / "report.html").read_text()
    assert all(why in page for why in reasons.values())


def test_who_failed_is_tried_again(tiny_file, tmp_path, monkeypatch):
    every, rounds = algorithms.registered(), [broken]
    flaky = SimpleNamespace(**vars(da_dpfl) | {"run_round": lambda *given: rounds[-1](*given)})
    monkeypatch.setattr(algorithms, "registered", lambda: every | {"flaky": flaky})
    path = tmp_path / "all"
    done = sparsefl("compare", tiny_file, "--algorithms", "flaky", *QUICK, "--out", path)
    assert done.exit_code == 1 and states(path) == {"flaky-seed-0": "failed"}
    rounds.append(da_dpfl.run_round)
    done = sparsefl("compare", "--resume", path)
    assert done.exit_code == 0 and states(path) == {"flaky-seed-0": "finished"}, done.output
    assert done.output.count("round    ") == 1  # the first one was saved
    assert not (path / "flaky-seed-0" / "failed.txt").exists()


def test_a_full_disk_ends_it_all(tiny_file, tmp_path, monkeypatch):
    from fl.run import runs

    def full(*given):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(runs, "start", full)
    done = sparsefl("compare", tiny_file, *TWO, *QUICK, "--out", tmp_path / "all")
    assert done.exit_code == 1 and "No space left" in done.output and "run 2/2" not in done.output


def test_more_seeds_and_algorithms_later(tiny_file, tmp_path, whole, same_results):
    path = tmp_path / "all"
    assert sparsefl("compare", tiny_file, "--algorithms", "da_dpfl", *QUICK, "--out", path).exit_code == 0
    more = ("--algorithms", "b=da_dpfl", "--set", "b:da_dpfl.max_wait=0", "--seeds", 2, "--target", 0.1)
    done = sparsefl("compare", "--resume", path, *more)
    assert done.exit_code == 0 and "3 runs, 1 of them finished" in done.output, done.output
    assert told(path)["target"] == {"accuracy": 0.1, "meaning": "given"}
    for folder in ("da_dpfl-seed-0", "b-seed-0", "b-seed-1"):
        same_results(path / folder, whole[0] / folder)


def test_comparisons_have_a_default_place(tiny_file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plot = tmp_path / "curves.html"
    done = sparsefl("compare", tiny_file, "--algorithms", "da_dpfl", *QUICK, "--plot", plot)
    assert done.exit_code == 0 and f"the plot is {plot}" in done.output, done.output
    (path,) = (tmp_path / "runs").iterdir()
    assert path.name.startswith("compare-tiny-2") and (path / "report.html").exists()
    assert "Accuracy against bytes" in plot.read_text()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "expected either a configuration"),
        (["demo", "--resume", "x"], 2, "expected either a configuration"),
        (["--resume", "x", "--out", "y"], 2, "expected --resume without --out"),
        (["demo"], 2, "expected --algorithms, as a,b,c or all, or --grid KEY=VALUE,VALUE, got neither"),
        (["demo", "--algorithms", "dispfll"], 2, "expected some of ['beer'"),
        (["demo", "--algorithms", "all", "--workers", "0"], 2, "--workers: expected at least 1, got 0"),
        (
            ["demo", "--algorithms", "all", "--target", "80"],
            2,
            "--target: expected an accuracy above 0, up to 1",
        ),
        (["demo", "--algorithms", "all", "--plot", "x.pdf"], 2, "--plot: expected a name that ends in .html"),
        (["dmeo", "--algorithms", "all"], 2, "did you mean 'demo'?"),
        (["--resume", "nowhere"], 1, "expected the directory of a comparison, got nowhere"),
        (
            ["demo", "--algorithms", "all", "--set", "data.name=nobody", "--set", "data.root=/nowhere"],
            1,
            "nobody: expected /nowhere/nobody.npz",
        ),
    ],
)
def test_what_goes_wrong_is_one_sentence(arguments, code, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = sparsefl("compare", *arguments)
    assert done.exit_code == code and message in done.output and "Traceback" not in done.output
    assert not list(tmp_path.iterdir())


def test_a_comparison_is_not_put_over_another(tiny_file, whole):
    path, _ = whole
    for command in (["compare", tiny_file, "--algorithms", "da_dpfl"], ["run", tiny_file]):
        done = sparsefl(*command, "--out", path)
        assert done.exit_code == 1 and "which holds one: continue it with --resume" in done.output
    assert not (path / "config.toml").exists()


def test_bars_on_a_terminal(tiny_file, tmp_path):
    with open(tmp_path / "out", "w") as file:
        console = Console(force_terminal=True, width=250, file=file)
        changes = ["num_rounds=2", "training.epochs=0", "wild:training.lr=1e30", "wild:training.epochs=1"]
        names = "da_dpfl,wild=da_dpfl"
        given = compare.Arguments(str(tiny_file), names, None, changes, tmp_path / "all", workers=1)
        assert compare.run(console, given) == 1
    text = (tmp_path / "out").read_text()
    for part in (
        "runs",
        "2/2",
        "left",
        "run 1/2  da_dpfl, seed 0: accuracy",
        "run 2/2  wild, seed 0 failed: expected a",
    ):
        assert part in text


def test_what_is_left_is_estimated():
    a, b, c = Run("a", 0), Run("b", 0), Run("a", 1)
    estimate = Estimate([a, b, c], 3)
    estimate.finished(a, 2.0)
    assert estimate.seconds == 2 * 2 + 3 * 2 + 3 * 2  # b takes what all took
    estimate.finished(b, 5.0)
    estimate.finished(b, 7.0)
    assert estimate.seconds == 2 * 2 + 1 * 6 + 3 * 2
    estimate.left[c] = 0
    assert estimate.seconds == 2 * 2 + 1 * 6


def test_overwrite_removes_the_comparison_that_is_there(tiny_file, tmp_path):
    path, new = tmp_path / "all", ("compare", tiny_file, *QUICK, "--workers", 1)
    assert sparsefl(*new, "--algorithms", "da_dpfl", "--out", path).exit_code == 0
    done = sparsefl(*new, "--algorithms", "dispfl", "--out", path)
    assert done.exit_code == 1 and "--overwrite" in done.output
    assert sparsefl(*new, "--algorithms", "dispfl", "--out", path, "--overwrite").exit_code == 0
    assert sorted(x.name for x in path.glob("*-seed-*")) == ["dispfl-seed-0"]


def test_other_versions_ask_for_allow_mixed(tiny_file, tmp_path, monkeypatch):
    """Once for all runs: none is marked as failed; those that went on are named wherever the table is."""
    path, real = tmp_path / "all", history.se.numerics
    with monkeypatch.context() as patched:
        interrupt_after(patched, 1)
        done = sparsefl("compare", tiny_file, "--algorithms", "da_dpfl", *QUICK, "--out", path)
        assert done.exit_code == 130
    monkeypatch.setattr(history.se, "numerics", lambda: real() | {"torch": "0.0.1"})
    done = sparsefl("compare", "--resume", path)
    assert done.exit_code == 1 and "--allow-mixed goes on all the same" in done.output
    assert not (path / "da_dpfl-seed-0" / "failed.txt").exists()
    done = sparsefl("compare", "--resume", path, "--allow-mixed")
    mark = "da_dpfl, seed 0: finished: mixed, as no single machine repeats it: from round 1: torch 0.0.1"
    assert done.exit_code == 0 and mark in done.output
    assert mark in (path / "comparison.md").read_text()
    assert "mixed, as no single machine" in (path / "report.html").read_text()
