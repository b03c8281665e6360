"""bench rounds: both runs are the runs that `sparsefl run` does, and the summary says what the rows say."""

import json
from statistics import fmean, stdev
from types import SimpleNamespace

import browser
import pytest
import torch

from fl import config
from fl.run import runs
from fl.run.rundir import read_jsonl
from sparsefl.bench import __main__ as bench
from sparsefl.bench import report, rounds, rounds_plot

TINY = ("num_clients=3", "num_rounds=2", "topology.degree=1", "training.epochs=1",
        "data.train_per_client=32", "data.test_per_client=20", "model.width=8")  # fmt: skip


@pytest.fixture(scope="module")
def rows():
    return list(rounds.run(config.load("demo", TINY), [5, 6], workers=1))


def made(accuracies, times=None):
    """Rows with {kernels: [curve of seed 0, curve of seed 1, ...]}, one second a round unless told."""
    times = times or {"sparse": 1.0, "dense": 1.0}
    return [
        {"seed": seed, "round": t, "kernels": kernels, "accuracy": value, "density": 0.5 - 0.1 * t,
         "train_s": times[kernels], "wall_s": 2 * times[kernels], "cpu_s": times[kernels]}
        for kernels, found in accuracies.items()
        for seed, curve in enumerate(found)
        for t, value in enumerate(curve)
    ]  # fmt: skip


@pytest.mark.parametrize("kernels", rounds.KERNELS)
def test_a_contestant_is_the_run_that_the_loop_does(rows, kernels, tmp_path):
    cfg = config.load("demo", [*TINY, "seed=6", f"training.kernels={kernels}"])
    runs.start(cfg, tmp_path / "run", runs.Options(workers=1))
    wanted = read_jsonl(tmp_path / "run" / "metrics.jsonl")
    found = [row for row in rows if (row["seed"], row["kernels"]) == (6, kernels)]
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours["round"] == theirs["round"] and ours["accuracy"] == theirs["accuracy_mean"]
        assert ours["loss"] == theirs["loss"] and ours["density"] == theirs["density_mean"]
        assert ours["accuracy_before"] == theirs["accuracy_before"]


def test_the_two_take_turns_and_in_who_comes_first(rows):
    order = [(row["seed"], row["round"], row["kernels"]) for row in rows]
    turns = [(0, "sparse"), (0, "dense"), (1, "dense"), (1, "sparse")]
    assert order == [(seed, t, kernels) for seed in (5, 6) for t, kernels in turns]
    assert all(0 < row["train_s"] < row["wall_s"] for row in rows)  # one worker


def test_threads_are_as_before(rows):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        found = rounds.run(config.load("demo", TINY), [0], workers=1)
        next(found)
        found.close()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_the_summary_by_hand():
    curves = {"sparse": [[0.1, 0.4], [0.3, 0.2]], "dense": [[0.2, 0.3], [0.2, 0.3]]}
    rows = made(curves, {"sparse": 2.0, "dense": 5.0})
    summary = rounds.summarise(rows)
    assert summary["sparse"]["accuracy_last"] == pytest.approx({"mean": 0.3, "sd": stdev([0.4, 0.2])})
    assert summary["sparse"]["accuracy_best"]["mean"] == pytest.approx(fmean([0.4, 0.3]))
    assert summary["dense"]["accuracy_best"] == pytest.approx({"mean": 0.3, "sd": 0.0})
    assert summary["sparse"]["density_last"] == pytest.approx(0.4)
    assert (summary["sparse"]["train_s"], summary["dense"]["wall_s"]) == (2.0, 10.0)
    assert summary["times_ours"] == {"train_s": 2.5, "wall_s": 2.5, "cpu_s": 2.5}
    assert summary["agreement"]["paired_difference"]["mean"] == pytest.approx(0)


@pytest.mark.parametrize(("shift", "agree", "within"), [(0.04, True, 2), (0.2, False, 0)])
def test_curves_agree_within_the_spread_of_seeds(shift, agree, within):
    sparse = [[0.5, 0.6], [0.6, 0.7]]  # sd 0.0707 in every round
    dense = [[value - shift for value in curve] for curve in sparse]
    found = rounds.agreement(made({"sparse": sparse, "dense": dense}))
    assert found["agree"] is agree and found["rounds_within_spread"] == within
    assert found["largest_gap"] == pytest.approx(shift)
    assert found["spread_of_seeds"] == pytest.approx(stdev([0.5, 0.6]))


def test_one_seed_has_no_spread():
    summary = rounds.summarise(made({"sparse": [[0.5]], "dense": [[0.4]]}))
    assert summary["agreement"]["agree"] is None
    assert (
        rounds.verdict(summary) == "One seed has no spread: the mean curves are at most 10.00 points apart."
    )


def test_the_command_writes_a_table_and_the_curves(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(rounds, "QUICK", TINY)
    file, plot = tmp_path / "rounds.json", tmp_path / "rounds.html"
    given = ["rounds", "--quick", "--seeds", "1", "--workers", "1", "--json", str(file), "--plot", str(plot)]
    assert bench.main([*given, "--set", "num_rounds=1"]) == 0
    result = json.loads(file.read_text())
    assert len(result["rows"]) == 2 and result["meta"]["workers"] == 1
    assert config.loads(result["meta"]["config"]).num_rounds == 1
    shown = capsys.readouterr().out
    assert report.markdown(result) in shown and "| local training" in shown and "1 worker(s)" in shown
    assert "figure-3" in plot.read_text()


def test_a_plot_is_refused_before_the_runs(capsys):
    assert bench.main(["rounds", "--quick", "--plot", "curves.pdf"]) == 2
    assert "ends in .html, .png or .svg, got curves.pdf" in capsys.readouterr().err


@pytest.mark.skipif(browser.CHROMIUM is None, reason="no Chromium")
def test_a_browser_draws_all_of_the_page(tmp_path):
    rows = made({"sparse": [[0.5, 0.6], [0.6, 0.7]], "dense": [[0.5, 0.6], [0.6, 0.6]]})
    cfg = SimpleNamespace(name="<b>made</b>", num_clients=3)
    summary = rounds.summarise(rows)
    page = rounds_plot.page({"rows": rows, "table": rounds.as_table(cfg, summary)})
    told, console = browser.look({"page": (page, 1000)}, tmp_path)
    assert told["page"]["drawn"] == told["page"]["wanted"] == 4 and not console
    assert told["page"]["heading"].startswith("<b>made</b>")
