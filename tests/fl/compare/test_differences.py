"""In which settings the entries of a comparison differ: said wherever its table is."""

import json
from dataclasses import replace

import comparisons
import pytest
from rich.console import Console

from fl import algorithms, config
from fl.compare import plan as compare_plan
from fl.compare import report as compare_report
from fl.compare import table as compare_table
from fl.compare.differences import differences
from fl.run import runs
from fl.train.local import Local
from fl.train.native_visit import NativeVisits
from fl.train.program import ProgramTurn


def texts(names, *changes, preset="demo"):
    return [one.text for one in differences(compare_plan.make(preset, names, None, changes))]


def test_clipping_is_a_visible_difference():
    assert texts("da_dpfl,dispfl") == ["differs: clipping (max_norm): da_dpfl none; dispfl 10"]
    assert texts("da_dpfl,dispfl,fedavg,gossipfl") == [
        "differs: clipping (max_norm): da_dpfl none; all others 10"
    ]
    assert texts("da_dpfl,dispfl", "training.max_norm=10") == []
    assert texts("da_dpfl,dispfl", "dispfl.max_norm=none") == []


def test_epochs_of_ditto_are_those_of_the_others_or_it_is_said():
    same = ["dispfl,fedavg,feddst,ditto", "training.epochs=2"]
    assert texts(*same) == ["differs: epochs per round: ditto 1 + 1; all others 2"]
    assert texts("fedavg,ditto", "training.epochs=1") == [
        "differs: epochs per round: fedavg 1; ditto 1 + 1: not the same work"
    ]
    assert texts("fedavg,ditto", "ditto.global_epochs=3", "ditto.personal_epochs=2", "training.epochs=2") == [
        "differs: epochs per round: fedavg 2; ditto 3 + 2: not the same work"
    ]


def test_settings_of_one_entry_are_seen():
    found = texts(
        "a=da_dpfl,b=da_dpfl", "b:training.lr=0.5", "b:data.alpha=1", "b:da_dpfl.max_wait=0", "b:name=x"
    )
    assert found == [
        "differs: data.alpha: a 0.5; b 1",
        "differs: learning rate: a 0.1; b 0.5",
        "differs: da_dpfl.max_wait: a 2; b 0",  # both are da_dpfl
    ]


def test_sections_are_compared_between_entries_of_one_algorithm_only():
    """Clipping is a key of dispfl's section, and told once: as what clients train with."""
    found = texts("da_dpfl,a=dispfl,b=dispfl", "b:dispfl.max_norm=5", "b:dispfl.density=0.25")
    assert found == [
        "differs: clipping (max_norm): da_dpfl none; a 10; b 5",
        "differs: dispfl.density: a 0.5; b 0.25",
    ]
    assert texts("a=da_dpfl,b=da_dpfl") == [] == texts("da_dpfl")


def test_all_nine():
    found = texts("all")
    assert "differs: clipping (max_norm): da_dpfl none; all others 10" in found
    assert "differs: momentum: dfedavgm, dfedsam 0.9; all others 0" in found
    assert "differs: learning rate: beer 0.05; all others 0.1" in found
    assert "differs: epochs per round: ditto 2 + 1; all others 3" in found and len(found) == 4


def test_who_cannot_run_is_left_out():
    found = texts("beer,da_dpfl,dispfl", "topology.kind=ring", "topology.redraw=true")
    assert found == ["differs: clipping (max_norm): da_dpfl none; dispfl 10"]


@pytest.mark.parametrize("changes", [(), ("training.momentum=0.5", "training.max_norm=3")])
@pytest.mark.parametrize("name", algorithms.registered())
def test_what_is_said_of_trainings_is_what_takes_place(tiny, tmp_path, monkeypatch, name, changes):
    """Every algorithm trains with the settings that its section declares."""
    real, visited, found = ProgramTurn._train, NativeVisits.run, []

    def train(self, local, tests):
        found.append((self.k, local))
        return real(self, local, tests)

    def run(self, t, starts, visit):
        found.extend((k, visit.local) for k in starts)
        return visited(self, t, starts, visit)

    monkeypatch.setattr(ProgramTurn, "_train", train)
    monkeypatch.setattr(NativeVisits, "run", run)
    cfg = tiny(f"algorithm={name}", "num_rounds=1", "training.epochs=2")
    cfg = config.changed(cfg, changes)  # also keys in whose place the algorithm has its own
    runs.start(cfg, tmp_path / "run", runs.Options(workers=1))
    of_one = [replace(local, pull=None, rho=0.0, stream="") for k, local in found if k == found[0][0]]
    assert of_one == [Local.of(one, 0) for one in cfg.settings.trainings(cfg.training)] and found


def test_it_is_said_wherever_the_table_is(tmp_path):
    comparisons.make(tmp_path / "all", {"da_dpfl": [[0.5, 0.6]], "dispfl": [[0.4, 0.5]]})
    comparison = compare_report.write(tmp_path / "all")
    line = "differs: clipping (max_norm): da_dpfl none; dispfl 10"
    told = json.loads((tmp_path / "all" / "comparison.json").read_text())
    assert told["differences"] == [
        {
            "key": "training.max_norm",
            "values": {"da_dpfl": "none", "dispfl": "10"},
            "equal_work": True,
            "text": line,
        }
    ]
    assert f"- {line}\n" in (tmp_path / "all" / "comparison.md").read_text()
    assert f"<li>{line}</li>" in (tmp_path / "all" / "report.html").read_text()
    assert line in compare_table.short(told)
    with open(tmp_path / "out", "w") as file:
        compare_table.show(Console(width=100, file=file), comparison.to_json())
    assert line in (tmp_path / "out").read_text()


def test_results_of_older_versions_have_a_table(tmp_path):
    comparisons.make(tmp_path / "all", {"a": [[0.5]]})
    told = compare_report.write(tmp_path / "all").to_json()
    del told["differences"]
    assert compare_table.short(told).startswith("| algorithm |")
