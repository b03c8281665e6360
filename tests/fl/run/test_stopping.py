"""Early stopping: by the lines of a run alone, the same after a resume, and complete for who reads it."""

import doctest
import json

import pytest

import fl
from fl import config
from fl.errors import ConfigError, RunDirError
from fl.run import recorded, runs, stopping
from fl.run.events import Listener
from fl.run.rundir import METRICS, SUMMARY, read_jsonl
from fl.run.runs import Interrupted, Options

SOON = ("run.patience=2", "run.min_gain=0.9")  # the first round is a gain, no other can be: three rounds
WHY = "accuracy_mean has not risen by more than 0.9 for 2 rounds"


def test_examples():
    found = doctest.testmod(stopping)
    assert found.attempted and not found.failed


def stop(accuracies, *changes):
    cfg = config.load("demo", [f"num_rounds={max(len(accuracies), 2)}", *changes])
    found = stopping.early(cfg, [{"round": t, "accuracy_mean": a} for t, a in enumerate(accuracies)])
    return found and found.round


@pytest.mark.parametrize(
    "accuracies, patience, min_gain, wanted",
    [
        ([0.5, 0.4, 0.4, 0.9], 2, 0.0, 2),
        ([0.5, 0.4, 0.6, 0.4, 0.4, 0.9], 2, 0.0, 4),  # a gain starts it anew
        ([0.5, 0.5, 0.5, 0.9], 2, 0.0, 2),  # as good is no gain
        ([0.5, 0.55, 0.6, 0.65, 0.9], 2, 0.06, None),  # 0.6 is above the last gain, 0.5, by more than that
        ([0.5, 0.55, 0.56, 0.65, 0.9], 2, 0.06, 2),
        ([None, None, None, 0.5, None, 0.4, 0.4, 0.4], 2, 0.0, 6),  # what was not tested does not count
        ([None] * 9, 1, 0.0, None),
        ([0.0, 0.0, 0.9], 1, 0.0, 1),
        ([0.5, 0.4, 0.4], 2, 0.0, None),  # the last round: that is not early
    ],
)
def test_where_a_run_stops(accuracies, patience, min_gain, wanted):
    assert stop(accuracies, f"run.patience={patience}", f"run.min_gain={min_gain}") == wanted


def test_without_patience_all_rounds_run():
    assert stop([0.5] * 50) is None


@pytest.mark.parametrize(
    "change, message",
    [
        ("run.patience=0", "run.patience: expected"),
        ("run.min_gain=1", "run.min_gain: expected"),
        ("run.min_gain=-0.1", "run.min_gain: expected"),
    ],
)
def test_settings_are_checked(change, message):
    with pytest.raises(ConfigError, match=message):
        config.load("demo", ["run.patience=2", change])


class Ear(Listener):
    def __init__(self, stop_after=None):
        self.notes, self.stop_after = [], stop_after

    def note(self, text):
        self.notes.append(text)

    def round_finished(self, record):
        if record["round"] == self.stop_after:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def stopped(tiny, tmp_path_factory):
    """A run that stopped after three of five rounds, what it said, and its summary."""
    path, ear = tmp_path_factory.mktemp("stopped") / "run", Ear()
    return path, ear, runs.start(tiny(*SOON), path, Options(workers=1, listener=ear))


def test_a_run_says_that_it_stopped(stopped):
    path, ear, summary = stopped
    assert ear.notes == [f"stopped early, after round 2: {WHY}"]
    assert summary["stopped_early"] == {"round": 2, "why": WHY} and summary["num_rounds"] == 5
    assert len(read_jsonl(path / METRICS)) == 3
    assert json.loads((path / SUMMARY).read_text())["stopped_early"] == summary["stopped_early"]
    whole = recorded.read(path)
    assert whole.finished and len(whole.rounds) == 3


def test_its_rounds_are_those_of_the_whole_run(stopped, tiny, tmp_path):
    runs.start(tiny(), tmp_path / "whole", Options(workers=1))
    ours, theirs = (read_jsonl(one / METRICS) for one in (stopped[0], tmp_path / "whole"))
    assert [line["loss"] for line in ours] == [line["loss"] for line in theirs[:3]] and len(theirs) == 5


@pytest.mark.parametrize("after", [0, 1, 2])
def test_resumed_it_stops_in_the_same_round(after, stopped, tiny, tmp_path, same_results):
    with pytest.raises(Interrupted):
        runs.start(tiny(*SOON), tmp_path / "run", Options(workers=1, listener=Ear(stop_after=after)))
    summary = runs.resume(tmp_path / "run", Options(workers=1))
    assert summary["stopped_early"] == stopped[2]["stopped_early"]
    same_results(tmp_path / "run", stopped[0], restored=True)  # files of records join what a stop parts


def test_a_run_that_stopped_is_not_resumed(stopped):
    before = (stopped[0] / METRICS).read_bytes()
    ear = Ear(stop_after=3)
    assert runs.resume(stopped[0], Options(workers=1, listener=ear)) == stopped[2]
    assert (stopped[0] / METRICS).read_bytes() == before and not ear.notes


def test_without_its_summary_only_that_is_written_again(stopped):
    (stopped[0] / SUMMARY).unlink()
    assert runs.resume(stopped[0], Options(workers=1)) == stopped[2]
    assert len(read_jsonl(stopped[0] / METRICS)) == 3


@pytest.mark.parametrize("number", [2, 4])
def test_too_few_or_too_many_rounds_are_damage(number, stopped, tmp_path):
    """Lines of a finished run that stop elsewhere than it did."""
    for name in ("config.toml", SUMMARY):
        (tmp_path / name).write_bytes((stopped[0] / name).read_bytes())
    lines = (stopped[0] / METRICS).read_text().splitlines(keepends=True)
    more = [lines[-1].replace('"round": 2', '"round": 3').replace('"round":2', '"round":3')]
    (tmp_path / METRICS).write_text("".join([*lines, *more][:number]))
    with pytest.raises(
        RunDirError, match=f"expected . rounds of a finished run.* in {METRICS}, got {number}"
    ):
        recorded.read(tmp_path)


def test_from_python_without_files(tiny):
    simulation = fl.Simulation(tiny(*SOON), workers=1)
    with pytest.warns(UserWarning, match="stopped early, after round 2"):
        assert [line["round"] for line in simulation] == [0, 1, 2]
    assert [*simulation] == []  # it has ended
    result = simulation.result()
    assert result.summary["stopped_early"] == {"round": 2, "why": WHY} and len(result.metrics) == 3
    assert result._recorded.finished


def test_no_baseline(tiny, tmp_path):
    """It might stop elsewhere, and sums over rounds would not be of the same work."""
    with pytest.raises(ConfigError, match="run.patience: expected none for a comparison with a baseline"):
        runs.twin_of(tiny(*SOON), "dense")
    assert runs.twin_of(tiny(), "dense").training.kernels == "dense"
