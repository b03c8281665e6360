"""Plans: names, seeds and settings as the command line has them, and back from a file."""

import json

import pytest

from fl import algorithms, compare_plan, config
from fl.compare_plan import Run
from fl.config import ConfigError


def make(names="da_dpfl", seeds="1", changes=()):
    return compare_plan.make("demo", names, seeds, changes)


def test_seed_by_seed():
    plan = make("da_dpfl,b=da_dpfl,c=da_dpfl", "1,b=3,c=2", ["seed=7"])
    assert plan.runs == [("da_dpfl", 7), ("b", 7), ("c", 7), ("b", 8), ("c", 8), ("b", 9)]
    assert Run("b", 9).folder == "b-seed-9"
    assert make(seeds="da_dpfl=2").runs == [("da_dpfl", 0), ("da_dpfl", 1)]


def test_all_are_those_that_there_are():
    assert list(make("all").entries) == list(algorithms.registered())
    assert list(make("all,b=da_dpfl").entries) == [*algorithms.registered(), "b"]


def test_settings_of_all_and_of_one():
    changes = ["training.lr=0.3", "b:da_dpfl.max_wait=0", "b:training.epochs=1", "description=a:b"]
    plan = make("da_dpfl,b=da_dpfl", "1", changes)
    a, b = (plan.config(run) for run in plan.runs)
    assert (a.da_dpfl.max_wait, a.training.epochs) == (2, 3) and a.description == "a:b"
    assert (b.da_dpfl.max_wait, b.training.epochs) == (0, 1)
    assert a.training.lr == b.training.lr == 0.3
    assert a == config.load("demo", ["training.lr=0.3", "description=a:b"])


def test_a_plan_survives_its_file():
    plan = make("da_dpfl,b=da_dpfl", "1,b=2", ["b:da_dpfl.max_wait=0", "training.lr=0.3"])
    again = compare_plan.from_json(json.loads(json.dumps(plan.to_json())))
    assert again == plan and [again.config(run) for run in again.runs] == [*map(plan.config, plan.runs)]


def test_the_file_is_complete():
    """Later changes of a preset or a default change nothing."""
    tree = make("da_dpfl", "1").to_json()["base"]
    assert tree["training"]["weight_decay"] == 5e-4 and tree["da_dpfl"]["max_wait"] == 2
    assert set(algorithms.registered()) < set(tree)


def test_extending():
    plan = make("da_dpfl", "2")
    assert compare_plan.extend(plan, None, None, []) is plan
    assert compare_plan.extend(plan, None, "3", []).runs == [("da_dpfl", s) for s in (0, 1, 2)]
    assert compare_plan.extend(plan, None, "1", []).runs == plan.runs
    more = compare_plan.extend(plan, "b=da_dpfl", "1", ["b:da_dpfl.max_wait=0"])
    assert more.runs == [("da_dpfl", 0), ("b", 0), ("da_dpfl", 1)]
    assert more.config(Run("b", 0)).da_dpfl.max_wait == 0
    for names, changes, message in [
        (None, ["training.lr=1"], "expected changes of new algorithms only"),
        ("da_dpfl", ["da_dpfl:training.lr=1"], "da_dpfl: expected a new name for new settings"),
        ("b=fedavg", ["c:training.lr=1"], r"NAME out of \['b'\], got 'c:training.lr=1'"),
    ]:
        with pytest.raises(ConfigError, match=message):
            compare_plan.extend(plan, names, None, changes)


@pytest.mark.parametrize(
    ("names", "seeds", "changes", "message"),
    [
        ("da_dfpl", "1", [], r"--algorithms: expected some of \['beer'.*, or all, got 'da_dfpl'"),
        ("", "1", [], "got ''"),
        ("da_dpfl,da_dpfl", "1", [], "each once"),
        ("fedavg=da_dpfl", "1", [], "got 'fedavg' in"),
        ("../x=da_dpfl", "1", [], r"got '\.\./x' in"),
        ("da_dpfl", "0", [], "--seeds: expected how many, as 3 or 1,NAME=3, got '0'"),
        ("da_dpfl", "three", [], "got 'three'"),
        ("da_dpfl", "1,2", [], "got '1,2'"),
        ("da_dpfl", "b=2", [], r"--seeds: expected names out of \['da_dpfl'\], got 'b'"),
        ("da_dpfl", "1", ["b:training.lr=1"], r"--set: expected NAME:key=value with NAME out of"),
        ("da_dpfl", "1", ["trainig.lr=1"], "did you mean 'training'"),
        ("da_dpfl", "1", ["da_dpfl:trainig.lr=1"], "did you mean 'training'"),
    ],
)
def test_what_is_wrong_is_said_at_once(names, seeds, changes, message):
    with pytest.raises(ConfigError, match=message):
        make(names, seeds, changes)


def test_one_algorithm_that_refuses_is_no_mistake():
    plan = make("beer,da_dpfl", "1", ["topology.kind=ring", "topology.redraw=true"])
    assert plan.config(Run("da_dpfl", 0)).topology.redraw
    with pytest.raises(ConfigError, match="topology.redraw: expected a fixed graph for beer"):
        plan.config(Run("beer", 0))
