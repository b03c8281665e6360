"""Where rounds were computed: recorded, repeated where the machine can, marked where it cannot."""

import json
import re

import pytest

import sparse_engine as se
from fl.errors import MixedError, RunDirError
from fl.report import report
from fl.report import summary as report_summary
from fl.run import history, recorded, runs
from fl.run.events import Listener
from fl.run.history import Part
from fl.run.runs import Interrupted, Options
from sparse_engine.choice import files, plan
from sparse_engine.choice.plan import Plan
from sparse_engine.choice.rule import Rule
from sparsefl.kernels import native
from sparsefl.kernels.sparse_conv import DIRECTIONS

QUICK = ("num_rounds=4",)
KINDS = ("conv", "linear")


class Stop(Listener):
    """Ctrl-C when round t begins; keeps what it is told."""

    def __init__(self, t=None):
        self.t, self.notes = t, []

    def round_started(self, t):
        if t == self.t:
            raise KeyboardInterrupt

    def note(self, text):
        self.notes.append(text)


def stopped(cfg, path, t=2):
    with pytest.raises(Interrupted):
        runs.start(cfg, path, Options(1, Stop(t)))


def other_torch(monkeypatch):
    real = se.numerics
    monkeypatch.setattr(history.se, "numerics", lambda: real() | {"torch": "0.0.1"})


several = pytest.mark.skipif(len(native.isas()) < 2, reason="one instruction set alone")


@several
def test_a_run_goes_on_with_the_instruction_set_it_was_started_with(tiny, tmp_path, same_results):
    """Its bytes are those of one that nobody stopped, and nothing says that it was another."""
    first, *_, best = native.isas()
    with se.use_isa(first):
        runs.start(tiny(*QUICK), tmp_path / "whole", Options(1))
        stopped(tiny(*QUICK), tmp_path / "run")
    ear = Stop()
    with se.use_isa(best):
        summary = runs.resume(tmp_path / "run", Options(1, ear))
        assert native.isa() == best  # as it was
    same_results(tmp_path / "run", tmp_path / "whole")
    assert summary["environment"]["instruction set in use"] == first and summary["mixed"] == []
    assert ear.notes == [
        f"goes on with the instruction set {first}, as the run was started (here {best} would be used)"
    ]


@pytest.mark.parametrize("layers", [True, False], ids=["layers", "program"])
def test_a_run_goes_on_with_its_own_plan_whatever_the_file_says_now(
    tiny, tmp_path, same_results, monkeypatch, layers
):
    how = (*QUICK, *(["training.path=layers"] if layers else []))
    file = tmp_path / "plan.json"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def from_now_on(kernel):
        """Every convolution and product on one kernel."""
        free = {f"{kernel} {native.isa()} {d} {kind}": [0.0] * 11 for d in DIRECTIONS for kind in KINDS}
        dear = {f"{k} {native.isa()} {d} {kind}": [1.0] * 11 for k in ("sparse", "dense") for d in DIRECTIONS
                for kind in KINDS}  # fmt: skip
        files.write(file, Plan(rule=Rule("tuned", dear | free)).text())
        monkeypatch.setattr(plan, "_defaults", {native.isa(): plan.from_file(file)})

    from_now_on("sparse")
    runs.start(tiny(*how), tmp_path / "whole", Options(1))
    stopped(tiny(*how), tmp_path / "run")
    started = se.numerics()["plan"]
    from_now_on("dense")
    runs.start(tiny(*how), tmp_path / "other", Options(1))
    ear = Stop()
    summary = runs.resume(tmp_path / "run", Options(2, ear))
    same_results(tmp_path / "run", tmp_path / "whole")
    assert summary["mixed"] == []
    here = se.numerics()["plan"]
    assert ear.notes == [
        f"goes on with the kernel plan {started}, as the run was started (here {here} would be used)"
    ]
    with pytest.raises(AssertionError):  # it matters
        same_results(tmp_path / "other", tmp_path / "whole")


def test_a_plan_that_cannot_be_read_is_another(tiny, tmp_path, monkeypatch):
    stopped(tiny(*QUICK), tmp_path / "run")
    real = history.plan.from_text

    def unreadable(text):
        raise ValueError("a plan of a later version")

    monkeypatch.setattr(plan, "_defaults", {native.isa(): Plan({"forward x": "dense"})})
    monkeypatch.setattr(history.plan, "from_text", unreadable)
    with pytest.raises(MixedError, match="plan measured, sha256 .* instead of built-in rule"):
        runs.resume(tmp_path / "run", Options(1))
    monkeypatch.setattr(history.plan, "from_text", real)
    runs.resume(tmp_path / "run", Options(1))


def test_other_versions_are_refused_and_nothing_is_changed(tiny, tmp_path, monkeypatch):
    stopped(tiny(*QUICK), tmp_path / "run")
    before = {x: x.read_bytes() for x in (tmp_path / "run").rglob("*") if x.is_file()}
    was = se.numerics()["torch"]
    other_torch(monkeypatch)
    with pytest.raises(
        MixedError, match=rf"torch 0.0.1 instead of {re.escape(was)}.*--allow-mixed goes on all the same"
    ):
        runs.resume(tmp_path / "run", Options(1))
    assert before == {x: x.read_bytes() for x in (tmp_path / "run").rglob("*") if x.is_file()}


def test_a_mixed_run_is_marked_for_ever(tiny, tmp_path, monkeypatch):
    stopped(tiny(*QUICK), tmp_path / "run")
    other_torch(monkeypatch)
    with pytest.raises(Interrupted):  # once more, after a mixed round
        runs.resume(tmp_path / "run", Options(1, Stop(3), allow_mixed=True))
    ear = Stop()
    summary = runs.resume(tmp_path / "run", Options(1, ear))  # as it went on: no question now
    assert ear.notes == []
    assert [part["from_round"] for part in summary["mixed"]] == [0, 2]
    assert summary["mixed"][1]["numerics"]["torch"] == "0.0.1"
    assert ("MIXED", "from round 2: torch 0.0.1", "", "") in report_summary.summary_rows(summary)
    assert "<b>Mixed:</b>" in report.html(recorded.read(tmp_path / "run"))


def test_resuming_a_finished_run_changes_nothing_that_was_recorded(tiny, tmp_path, monkeypatch):
    """Neither on another machine nor with other workers."""
    runs.start(tiny("num_rounds=1"), tmp_path / "run", Options(1))
    before = (tmp_path / "run" / "summary.json").read_bytes()
    other_torch(monkeypatch)
    monkeypatch.setattr(history, "environment", lambda: {"cpu": "another"})
    summary = runs.resume(tmp_path / "run", Options(3))
    assert summary["workers"] == 1 and (tmp_path / "run" / "summary.json").read_bytes() == before
    (tmp_path / "run" / "summary.json").unlink()  # killed before it was written
    assert runs.resume(tmp_path / "run", Options(3)) == json.loads(before)
    assert (tmp_path / "run" / "summary.json").read_bytes() == before


def test_the_workers_that_ran_are_recorded(tiny, tmp_path, monkeypatch):
    """Not those that could run when it ends, and no more than there are clients."""
    counts = iter([3])
    monkeypatch.setattr(Options, "num_workers", property(lambda self: next(counts, 50)))
    summary = runs.start(tiny("num_rounds=1"), tmp_path / "run", Options())
    assert summary["workers"] == 3
    monkeypatch.undo()
    assert runs.start(tiny("num_rounds=1"), tmp_path / "more", Options(9))["workers"] == 4


def test_parts():
    a, b = Part(0, 2, {"torch": "1"}, {}), Part(3, 2, {"torch": "2"}, {})
    assert history.continued((), a) == (a,) == history.continued((a,), a._replace(from_round=2))
    assert history.continued((a,), b) == (a, b) == history.from_json(history.to_json((a, b)))
    assert history.mixed((a, a._replace(workers=1))) == [] and len(history.mixed((a, b))) == 2


@pytest.mark.parametrize(
    "told",
    [
        *(None, {}, [None], [{}], [[1]]),
        [{"from_round": -1, "workers": 1, "numerics": {}, "environment": {}}],
        [{"from_round": 0, "workers": True, "numerics": {}, "environment": {}}],
        [{"from_round": 0, "workers": 1, "numerics": {"a": 1}, "environment": {}}],
        [{"from_round": 0, "workers": 1, "numerics": {}, "environment": []}],
    ],
)
def test_what_is_no_history_is_refused(told):
    with pytest.raises(RunDirError, match="history"):
        history.from_json(told)
