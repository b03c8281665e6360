"""The loop: when states are saved, and what the clock of a round measures."""

from types import SimpleNamespace

import pytest

from fl.errors import Diverged
from fl.run import loop, metrics, runs
from fl.run.loop import SHARE, SMALL, Run
from fl.run.rundir import METRICS, read_jsonl
from fl.run.runs import Options
from fl.train import layers, worker


def due(every, saved_bytes, saved_s, since, t=3, num_rounds=100):
    run = Run.__new__(Run)
    run.cfg = SimpleNamespace(
        num_rounds=num_rounds, run=SimpleNamespace(checkpoint_every=every, checkpoint_seconds=None)
    )
    run._saved_bytes, run._saved_s, run._saved_at = saved_bytes, saved_s, 1000.0
    loop.perf_counter, real = (lambda: 1000.0 + since), loop.perf_counter
    try:
        return run._due(t)
    finally:
        loop.perf_counter = real


def test_small_states_are_saved_after_every_round():
    assert due(None, 0, 0.0, 0.0) and due(None, SMALL, 10.0, 0.0)


def test_saving_large_ones_takes_a_twentieth_of_the_time():
    assert not due(None, SMALL + 1, 10.0, SHARE * 10.0 - 1) and due(None, SMALL + 1, 10.0, SHARE * 10.0)
    assert due(None, SMALL + 1, 10.0, 0.0, t=99)  # the last round


@pytest.mark.parametrize(("t", "wanted"), [(3, False), (4, True), (98, False), (99, True)])
def test_a_number_of_rounds_is_kept_whatever_saving_takes(t, wanted):
    assert due(5, 10**12, 100.0, 0.0, t) == wanted


def test_the_clock_of_a_round_does_not_run_while_workers_are_made(tiny, tmp_path, monkeypatch):
    """torch's imports and networks are made before the first round, not in it."""
    real, slow, clock = worker.Worker.__init__, 1000.0, [0.0]
    monkeypatch.setattr(loop, "perf_counter", lambda: clock[0])

    def made(self, *arguments, **options):
        clock[0] += slow
        real(self, *arguments, **options)

    monkeypatch.setattr(worker.Worker, "__init__", made)
    runs.start(tiny("num_rounds=2"), tmp_path / "run", Options(2))
    assert clock[0] >= slow and all(line["wall_s"] < slow for line in read_jsonl(tmp_path / "run" / METRICS))


def test_an_optimizer_was_made_before_the_first_round(tiny, tmp_path, monkeypatch):
    """The first one of a process imports a thousand modules."""
    events = []
    real = layers.Layers.optimizer
    monkeypatch.setattr(
        layers.Layers,
        "optimizer",
        lambda self, *a, **o: (events.append("optimizer"), real(self, *a, **o))[1],
    )
    listener = type("Ear", (runs.Listener,), {"round_started": lambda self, t: events.append(t)})()
    runs.start(tiny("num_rounds=1", "training.path=layers"), tmp_path / "run", Options(2, listener))
    assert events[:3] == ["optimizer", "optimizer", 0]  # one per worker


def test_a_figure_that_is_no_number_is_a_divergence(tiny, tmp_path, monkeypatch):
    """Said with its key and round; what was finished before stays, and the lines hold numbers alone."""
    real = metrics.round_record
    changed = lambda t, *rest: real(t, *rest) | ({"drift_mean": float("inf")} if t == 1 else {})  # noqa: E731
    monkeypatch.setattr(metrics, "round_record", changed)
    with pytest.raises(Diverged, match="expected a finite drift_mean in round 1, got inf: lower training.lr"):
        runs.start(tiny(), tmp_path / "run", Options(1))
    assert len(read_jsonl(tmp_path / "run" / METRICS)) == 1
    monkeypatch.undo()
    assert runs.resume(tmp_path / "run", Options(1))["num_rounds"] == 5
