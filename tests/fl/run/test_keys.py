"""One table of keys: what runs write is in it, and what is made from it is current."""

import ast
from pathlib import Path
from types import SimpleNamespace

import pytest

from fl import algorithms
from fl.algorithms import dispfl
from fl.cli import display
from fl.keys import Figure, Key, Level
from fl.report import figures, summary
from fl.run import keys, recorded, reference, runs
from fl.run.rundir import CLIENTS, METRICS, read_jsonl
from fl.run.runs import Options

ROOT = Path(__file__).parents[3]
GENERIC = ("fl/run", "fl/report", "fl/compare", "fl/cli")
OWN = ("votes", "drift_mean", "drift_ratio_mean", "pruned", "t_star", "prune_rounds")


@pytest.mark.parametrize("name", algorithms.registered())
def test_lines_hold_known_keys_in_the_order_of_the_table(name, tiny, tmp_path):
    told = runs.start(tiny(f"algorithm={name}", "num_rounds=2"), tmp_path / "run", Options(1))
    rounds, clients = (read_jsonl(tmp_path / "run" / file) for file in (METRICS, CLIENTS))
    for where, lines in (("round", rounds), ("client", clients), ("run", [told])):
        table = [key.name for key in keys.table(where)]
        for line in lines:
            assert not keys.unknown(where, line)
            own = {key.name for key in keys.declared(where)}  # where facts stand is the algorithm's
            usual = [key for key in line if key not in own]
            assert usual == sorted(usual, key=table.index)
            needed = {key.name for key in keys.table(where) if not key.null and key.name not in own}
            assert needed <= set(line)
            assert all(key.null for key in keys.table(where) if line.get(key.name, 0) is None)


def test_an_unknown_key_is_seen():
    assert keys.unknown("round", ["loss", "lossy"]) == ["lossy"]
    assert keys.unknown("client", ["loss", "votes"]) == ["votes"]


def test_names_are_given_once():
    for where in keys.FILES:
        names = [key.name for key in keys.table(where)]
        assert len(names) == len(set(names))


def test_sums_are_of_keys_that_exist():
    rounds, clients = ({key.name for key in keys.table(where)} for where in ("round", "client"))
    assert {key.of for key in keys.sums()} <= rounds
    assert {key.of for key in keys.table("round") if key.of} <= clients
    assert all((key.sums == "none") == (key.of == "") for where in keys.FILES for key in keys.table(where))


def test_what_is_measured():
    joules = "energy_j energy_net_j idle_w energy_cpu_j energy_dram_j energy_gpu_j"
    boards = "gpu_sm_mhz gpu_memory_mhz gpu_temperature_c gpu_throttled energy_note"
    assert keys.TIMING == (*joules.split(), *boards.split(), "wall_s", "rss_bytes", "train_s")
    optional = {key.name for key in keys.ROUND_ENDS if key.null}
    assert set(keys.TIMING) - optional == {"wall_s", "train_s"}


def test_costs_and_references():
    assert [key.name for key in keys.references()] == ["bytes_total_dense", "flop_total_dense"]
    costs = "bytes_total bytes_total_paper flop_total sim_time_s sim_energy_j"
    joules = "energy_j energy_net_j energy_cpu_j energy_dram_j energy_gpu_j"
    names = [*costs.split(), *joules.split(), "wall_s", "train_s"]
    assert [key.name for key in keys.costs()] == names
    assert [key.name for key in keys.costs() if key.null] == joules.split()


def test_generic_layers_name_no_key_of_an_algorithm():
    for source in (path for folder in GENERIC for path in (ROOT / folder).rglob("*.py")):
        nodes = ast.walk(ast.parse(source.read_text()))
        named = {node.value for node in nodes if isinstance(node, ast.Constant) and node.value in OWN}
        assert not named, source


def test_algorithms_of_others_add_keys_to_their_own_runs_alone(monkeypatch):
    mine = SimpleNamespace(
        __name__="mine",
        KEYS=(
            Key("norm_mean", "of updates", of="norm", sums="mean", null=True, shown="norm {:.1f}"),
            Key("norm_max", "largest", where="run", of="norm_mean", sums="max"),
        ),
    )
    all_of_them = algorithms.registered() | {"mine": mine}
    monkeypatch.setattr(algorithms, "registered", lambda: all_of_them)
    for name in ("mine", "folder/mine.py"):
        assert not keys.unknown("round", ["norm_mean"], name) and not keys.unknown("run", ["norm_max"], name)
        assert [key.name for key in keys.own("run", name)] == ["norm_max"]
    for name in ("", "fedavg", "nobody"):
        assert keys.unknown("round", ["norm_mean"], name) and keys.unknown("run", ["norm_max"], name)
        assert "norm_max" not in {key.name for key in keys.sums(name)}
        assert "votes" in {key.name for key in keys.declared("round", name)}
    assert "norm_mean" in {key.name for key in keys.progress()} and "norm" not in reference.text()


@pytest.fixture
def shows(monkeypatch):
    """DisPFL, if it showed how much is stored."""
    declared = (
        Key("weight", "a number", where="client"),
        Key("weight_sum", "of all", of="weight", sums="sum", shown="weight {:.1f}"),
        Key("heavy", "with weight", where="run", of="weight_sum", sums="rounds", shown="heavy in", mark="!"),
        Key("weight_max", "largest", where="run", of="weight_sum", sums="max", shown="heaviest"),
    )  # fmt: skip
    real = dispfl.run_round

    def run_round(state, t, env):
        result = real(state, t, env)
        result.columns["weight"] = [t / 2] * env.num_clients
        return result

    figure = Figure(key="weight_sum", title="Weight", text="Of all.", y="kg")
    monkeypatch.setattr(dispfl, "KEYS", declared, raising=False)
    monkeypatch.setattr(dispfl, "FIGURES", (figure,), raising=False)
    level = Level(key="weight_sum", value=lambda cfg: cfg.density, text="at {:g}")
    monkeypatch.setattr(dispfl, "LEVELS", (level,), raising=False)
    monkeypatch.setattr(dispfl, "run_round", run_round)


def test_what_an_algorithm_declares_is_everywhere(shows, tiny, tmp_path):
    path = tmp_path / "run"
    told = runs.start(tiny("algorithm=dispfl", "num_rounds=3"), path, Options(1))
    lines = read_jsonl(path / METRICS)
    assert [line["weight_sum"] for line in lines] == [0, 2, 4]
    assert told["heavy"] == [1, 2] and told["weight_max"] == 4
    assert "weight 2.0" in display.figures(lines[1])
    rows = summary.summary_rows(told)
    assert ("heavy in", "1, 2", "", "") in rows and ("heaviest", "4", "", "") in rows
    assert not [row for row in rows if "pruning" in row[0]]
    panels = {panel.title: panel for panel in figures.panels(recorded.read(path))}
    shown = panels["Weight"].figure
    assert [*shown.data[0].y] == [0, 2, 4] and len(shown.layout.shapes) == 3  # a level, two marks
    assert "Votes to prune" not in panels
    assert "| `weight_max` |  | exact | largest `weight_sum` | largest | dispfl |" in reference.text()
