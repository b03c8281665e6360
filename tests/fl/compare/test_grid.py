"""Grids: every combination once, under a name that is a folder's, with the setting named in the table."""

import pytest

from fl.compare import grid
from fl.compare import plan as compare_plan
from fl.compare.differences import differences
from fl.compare.plan import Run, from_json
from fl.errors import ConfigError


def make(*axes, names=None, seeds=None, changes=()):
    return compare_plan.make("demo", names, seeds, changes, axes=axes)


def test_every_combination():
    plan = make("training.lr=0.05,0.1", "da_dpfl.max_wait=0,2")
    names = [f"da_dpfl-lr-{lr}-max_wait-{wait}" for lr in ("0.05", "0.1") for wait in (0, 2)]
    assert list(plan.entries) == names
    for name in names:
        cfg, (_, _, lr, _, wait) = plan.config(Run(name, 0)), name.split("-")
        assert cfg.training.lr == float(lr) and cfg.settings.max_wait == int(wait)
        assert cfg.algorithm == "da_dpfl"
    assert from_json(plan.to_json()) == plan
    assert [one.text for one in differences(plan)] == [
        f"differs: learning rate: {names[0]}, {names[1]} 0.05; {names[2]}, {names[3]} 0.1",
        f"differs: da_dpfl.max_wait: {names[0]}, {names[2]} 0; {names[1]}, {names[3]} 2",
    ]


def test_the_algorithm_is_the_configurations_or_those_that_are_named(tmp_path):
    (tmp_path / "mine.toml").write_text('algorithm = "dispfl"\n')
    plan = compare_plan.make(str(tmp_path / "mine.toml"), None, None, (), axes=["training.lr=0.1"])
    assert list(plan.entries) == ["dispfl-lr-0.1"]
    plan = make("training.lr=0.05,0.1", "da_dpfl.max_wait=0,2", names="da_dpfl,x=fedavg")
    assert len(plan.entries) == 4 + 2 and plan.entries["x-lr-0.1"].algorithm == "fedavg"
    assert [one.key for one in differences(plan)][-1] == "da_dpfl.max_wait"
    assert not any("x-lr" in name for name in differences(plan)[-1].values)


def test_seeds_and_settings_of_a_name_are_of_all_its_entries():
    plan = make(
        "training.lr=0.05,0.1",
        names="da_dpfl,fedavg",
        seeds="1,fedavg=3",
        changes=["fedavg:training.epochs=1"],
    )
    for name, entry in plan.entries.items():
        many = name.startswith("fedavg")
        assert len(entry.seeds) == (3 if many else 1)
        assert ("training.epochs=1" in entry.changes) == many
    alone = make("training.lr=0.05,0.1", seeds="1,da_dpfl-lr-0.1=2")
    assert [len(entry.seeds) for entry in alone.entries.values()] == [1, 2]


def test_names_that_would_look_the_same_hold_the_whole_key():
    parts = grid.expand({"a.x": ["1"], "b.x": ["1"]}, {"da_dpfl": "da_dpfl"}, None, [])
    assert list(parts.chosen) == ["da_dpfl-a.x-1-b.x-1"]


def test_lists_and_other_letters():
    assert grid.axes(["model.hidden=[64, 32],[8]"]) == {"model.hidden": ["[64, 32]", "[8]"]}
    made = grid.expand({"model.hidden": ["[64, 32]", "[8]"]}, {"da_dpfl": "da_dpfl"}, None, [])
    assert list(made.chosen) == ["da_dpfl-hidden-_64_32_", "da_dpfl-hidden-_8_"]


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        (["training.lr"], "--grid: expected KEY=VALUE,VALUE,..., got 'training.lr'"),
        (["training.lr=0.1,"], "expected KEY=VALUE,VALUE"),
        (["training.lr=0.1,0.1"], "expected every key and value once"),
        (["training.lr=0.1", "training.lr=0.2"], "expected every key and value once"),
        (["seed=1,2"], "got seed: use --seeds"),
        (["algorithm=da_dpfl,dispfl"], "got algorithm: use --algorithms"),
        (["dispfl.density=0.1,0.2"], r"--grid: expected keys of \['da_dpfl'\], got dispfl.density"),
        (["training.lr=0.1,-1"], "training.lr"),
        (["training.rl=0.1"], "training.rl"),
        (["data.name=a/b,a|b"], "got da_dpfl-name-a_b twice"),
    ],
)
def test_wrong_grids_are_sentences(axes, message):
    with pytest.raises(ConfigError, match=message):
        make(*axes)


def test_a_comparison_grows_by_values():
    plan = make("training.lr=0.05,0.1", seeds="2")
    more = compare_plan.extend(plan, None, None, (), ["training.lr=0.1,0.2"])
    assert list(more.entries) == ["da_dpfl-lr-0.05", "da_dpfl-lr-0.1", "da_dpfl-lr-0.2"]
    assert more.entries["da_dpfl-lr-0.2"].seeds == (0, 1)
    assert more.entries["da_dpfl-lr-0.1"] == plan.entries["da_dpfl-lr-0.1"]
    with pytest.raises(ConfigError, match="expected a new name for new settings"):
        compare_plan.extend(plan, None, None, ["da_dpfl:training.epochs=1"], ["training.lr=0.1"])
