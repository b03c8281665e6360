"""Measured joules in comparisons: columns of their own, and words where there are none."""

import comparisons
import pytest

from fl.compare import figures, results, spreadsheet, table
from fl.run.meters.energy import CPU, GPU, IDLE

A, B = [[0.2, 0.6, 0.5], [0.3, 0.7, 0.8]], [[0.1, 0.45, 0.4]]
METER = {CPU: "RAPL", GPU: "no meter: no board"}
ABSENT = {CPU: "no meter: no file", GPU: "no meter: no board"}


@pytest.fixture
def made(tmp_path):
    """a has joules, b has none."""

    def make(**lines):
        path = tmp_path / "all"
        comparisons.make(path, {"a": A, "b": B}, lines=lines)
        return results.read(path)

    return make


def told(comparison, environment):
    return comparison.to_json() | {"environment": environment}


def test_sums_until_the_end_and_until_the_target(made):
    found = made(a={"energy_j": 7.0, "energy_net_j": 3.0, "trained": 2}).to_json()["algorithms"]["a"]
    assert found["figures"]["energy_j"] == {"mean": 21, "sd": 0}
    assert found["figures"]["energy_net_j"]["mean"] == 9
    assert found["figures"]["energy_per_client_round_j"]["mean"] == 3.5
    assert found["figures"]["energy_per_step_j"] is None and found["figures"]["energy_gpu_j"] is None
    assert found["to_target"]["energy_j"]["mean"] == 14  # two rounds


def test_what_one_seed_does_not_know_is_unknown(made):
    comparison = made(a={"energy_j": 7.0})
    comparison.results[0].rounds[1]["energy_j"] = None
    found = comparison.to_json()["algorithms"]["a"]["figures"]
    assert found["energy_j"] is found["energy_per_round_j"] is None
    assert found["accuracy_best"] is not None
    known = [run["figures"]["energy_j"] for run in comparison.to_json()["runs"] if run["name"] == "a"]
    assert sorted(known, key=str) == [21, None]


@pytest.mark.parametrize(("environment", "word"), [(METER, "unknown"), (ABSENT, "no meter")])
def test_columns_of_their_own(made, environment, word):
    given = told(made(a={"energy_j": 7.0}), environment)
    for shown in (table.results(given), table.to_target(given)):
        assert shown.head[-3:] == ["energy, modelled", "energy, measured", "energy, measured, net of idle"]
        rows = {row[0]: row for row in shown.rows}
        joules = "21 J" if shown.head == table.results(given).head else "14 J"
        assert rows["a"][-2:] == [joules, word] and rows["b"][-2:] == [word, word]
        assert rows["b"][-3].endswith("J")
    assert "energy, measured" in table.markdown(given)


def test_nobody_asked(made):
    comparison = made()
    given = comparison.to_json()
    for shown in (table.results(given), table.to_target(given)):
        assert not [head for head in shown.head if "energy, measured" in head]
    assert not [panel for panel in figures.panels(comparison) if "joules (measured)" in panel.title]


def test_the_spreadsheet_has_an_empty_cell(made):
    text = spreadsheet.text(made(a={"energy_j": 7.0}).to_json())
    head, a, b = (line.split(",") for line in text.split("\n")[:3])
    at = head.index("energy_j_mean")
    assert a[at] == "21.0" and b[at] == "" and a[head.index("target_energy_j_mean")] == "14.0"


def test_the_figure_is_of_those_that_know(made):
    comparison = made(a={"energy_j": 7.0})
    (panel,) = [one for one in figures.panels(comparison) if "joules (measured)" in one.title]
    assert "Joules unknown: b" in panel.text
    assert [*panel.figure.data[-1].x] == [7, 14, 21]


def test_a_run_that_stopped_early_pays_no_more(tmp_path):
    comparisons.make(
        tmp_path / "all",
        {"a": [[0.5, 0.4], [0.5, 0.6, 0.7]]},
        ["run.patience=1", "num_rounds=3"],
        lines={"a": {"energy_j": 7.0}},
    )
    (line,) = figures.drawn(results.read(tmp_path / "all"))
    assert line.knows("energy_j") and line.paid("energy_j") == [7, 14, 17.5]
    assert not line.knows("energy_net_j")
    assert all(one.get("energy_net_j") is None for run in line.runs for one in run)  # not 0


def test_idle_power_stays_with_the_run(made):
    comparison = made()
    for result in comparison.results:
        result.recorded.summary["environment"] |= {IDLE: f"{result.run.seed} W", CPU: "RAPL"}
    assert comparison.environment[CPU] == "RAPL" and IDLE not in comparison.environment
