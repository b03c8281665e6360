"""Plans: names, seeds and settings as the command line has them, and back from a file."""

import json

import pytest

from fl import algorithms, config
from fl.compare import plan as compare_plan
from fl.compare import runs
from fl.compare.plan import Run
from fl.config import ConfigError
from fl.errors import RunDirError


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


@pytest.mark.parametrize(
    "name", [n for n, a in algorithms.registered().items() if a.Config.unsets("max_norm")]
)
def test_what_was_set_to_none_stays_none(name):
    """In the plan that a resumed comparison reads, and with seeds that are added later."""
    plan = make(name, "1", [f"{name}.max_norm=none"])
    again = compare_plan.from_json(json.loads(json.dumps(plan.to_json())))
    assert again == plan
    later = compare_plan.extend(again, None, "2", [])
    found = [getattr(later.config(run), name).max_norm for run in later.runs]
    assert found == [None, None] and getattr(config.load("demo"), name).max_norm == 10


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


def test_a_new_algorithm_has_the_seeds_of_the_comparison():
    plan = make("da_dpfl,b=da_dpfl", "1,b=2", ["seed=4"])
    more = compare_plan.extend(plan, "ditto", None, [])
    assert more.entries["ditto"].seeds == (4, 5) and more.entries["da_dpfl"].seeds == (4,)
    assert compare_plan.extend(plan, "ditto", "1", []).entries["ditto"].seeds == (4,)
    both = compare_plan.extend(plan, "ditto,fedavg", "ditto=3", [])
    assert both.entries["ditto"].seeds == (4, 5, 6) and both.entries["fedavg"].seeds == (4, 5)
    assert compare_plan.extend(plan, "da_dpfl,ditto", None, []).entries["da_dpfl"].seeds == (4,)


EVIL = {"algorithm": "da_dpfl", "changes": [], "seeds": [0]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": None}, "expected a plan of format 2, got None: another version of sparsefl made it"),
        ({"format": 3}, "expected a plan of format 2, got 3"),
        ({"more": 1}, "the plan: expected an object with the keys"),
        ({"entries": {}}, "entries: expected an object with at least one algorithm, got {}"),
        ({"entries": [1]}, r"entries: expected an object with at least one algorithm, got \[1\]"),
        ({"entries": {"a": 3}}, "entries.a: expected an object with the keys .*, got 3"),
        ({"entries": {"../../evil": EVIL}}, r"expected a name of letters and digits.*got '../../evil'"),
        ({"entries": {"/tmp/evil": EVIL}}, "expected a name of letters and digits"),
        ({"entries": {"a/b": EVIL}}, "expected a name of letters and digits"),
        ({"entries": {"a\n": EVIL}}, "expected a name of letters and digits"),
        ({"entries": {"": EVIL}}, "expected a name of letters and digits"),
        ({"entries": {"a" * 101: EVIL}}, "expected a name of letters and digits, up to 100"),
        ({"entries": {"a": EVIL | {"seeds": []}}}, "a: expected at least one seed, got none"),
        ({"entries": {"a": EVIL | {"seeds": ["../x"]}}}, "entries.a.seeds: expected a list of whole numbers"),
        ({"entries": {"a": EVIL | {"seeds": [True]}}}, "entries.a.seeds: expected a list of whole numbers"),
        ({"entries": {"a": EVIL | {"seeds": [-1]}}}, "entries.a.seeds: expected a list of whole numbers"),
        ({"entries": {"a": EVIL | {"seeds": [0, 0]}}}, "each once"),
        ({"entries": {"a": EVIL | {"seeds": [2**63]}}}, "entries.a.seeds"),
        ({"entries": {"a": EVIL | {"seeds": 3}}}, "entries.a.seeds"),
        ({"entries": {"a": EVIL | {"algorithm": "evil"}}}, "entries.a.algorithm: expected one of"),
        ({"entries": {"a": EVIL | {"algorithm": ["x"]}}}, "entries.a.algorithm: expected one of"),
        ({"entries": {"a": EVIL | {"changes": "seed=1"}}}, "entries.a.changes: expected a list of strings"),
        ({"entries": {"a": EVIL | {"changes": [1]}}}, "entries.a.changes: expected a list of strings"),
        ({"target": "high"}, "target: expected null or an accuracy above 0, up to 1, got 'high'"),
        ({"target": True}, "target: expected null or an accuracy"),
        ({"base": []}, r"base: expected a configuration, got \[\]"),
        ({"base": {"sed": 1}}, "expected a known key, got sed"),
    ],
)
def test_a_hostile_plan_is_refused_in_a_sentence(tmp_path, change, message):
    tree = make().to_json() | change
    (tmp_path / "plan.json").write_text(json.dumps(tree))
    with pytest.raises(RunDirError, match=message) as refused:
        runs.read_plan(tmp_path)
    assert str(refused.value).startswith(str(tmp_path / "plan.json"))


def test_plans_of_the_format_that_lost_keys_are_refused(tmp_path):
    """Format 1 had no number."""
    tree = {key: value for key, value in make().to_json().items() if key != "format"}
    (tmp_path / "plan.json").write_text(json.dumps(tree))
    with pytest.raises(RunDirError, match="got one without a number: .* start the comparison anew"):
        runs.read_plan(tmp_path)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "3", "null", "[" * 100_000, '{"format": 2, "target": NaN}', '"\\ud800"', "\x00"]
)
def test_what_is_no_plan_is_refused_in_a_sentence(tmp_path, text):
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(RunDirError, match="plan.json"):
        runs.read_plan(tmp_path)


def test_no_directory_of_a_run_is_outside_that_of_the_comparison(tmp_path):
    (tmp_path / "c").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "c" / "a-seed-0").symlink_to(tmp_path / "elsewhere")
    assert Run("b", 0).below(tmp_path / "c") == tmp_path / "c" / "b-seed-0"
    for run in (Run("a", 0), Run("../b", 0), Run("/tmp/b", 0), Run("..", 0)):
        with pytest.raises(RunDirError, match="expected the directory of a run inside"):
            run.below(tmp_path / "c")
    with pytest.raises(ConfigError, match="expected a name of letters and digits"):
        compare_plan.Plan(config.load("demo"), {"../b": compare_plan.Entry("da_dpfl", (0,))})


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
        ("da_dpfl", "9" * 5000, [], "--seeds: expected how many"),
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
