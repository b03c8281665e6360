"""The configuration: presets are right, errors name key, value and what was expected, TOML comes back."""

import json
import math
import tomllib
from typing import Annotated, Literal, get_args, get_origin

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fl import algorithms, config
from fl.config import ConfigError


@pytest.mark.parametrize("name", config.presets())
def test_presets_are_valid_and_complete(name):
    loaded = config.load(name)
    assert loaded.name == name and loaded.description
    again = config.loads(config.dumps(loaded))
    others = {*algorithms.registered()} - {loaded.algorithm}  # a file has the section of one
    assert again.model_dump(exclude=others) == loaded.model_dump(exclude=others)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            "da_dpfl.max_wiat=3",
            r"da_dpfl.max_wiat: expected a known key, got .* = 3; did you mean 'da_dpfl.max_wait'\?",
        ),
        ("trainig.lr=1.0", "trainig: .* did you mean 'training'"),
        ("da_dpfl.pqi.ppp=1", "da_dpfl.pqi.ppp: expected a known key"),
        ("alpha=0.1", r"alpha: expected a known key, got alpha = 0.1; did you mean 'data.alpha'\?"),
        ("density=0.1", r"density: .* did you mean 'da_dpfl.density'\?"),
        ("clients_per_round=3", "did you mean 'ditto.clients_per_round' or 'fedavg.clients_per_round' or"),
        ("data.lr=0.1", r"data.lr: .* did you mean 'training.lr'\?"),
        ("model.depth.x=1", r"model.depth: expected a known key, got model.depth = .* known are \['name'"),
        ("qqq=1", r"qqq: expected a known key, got qqq = 1; known are \['name',"),
        ("training.lr=-1", "training.lr: expected a number above 0.0, got -1"),
        ("training.lr=fast", "training.lr: expected a number, got 'fast'"),
        ("training.lr=nan", "training.lr: expected a number .*, got nan"),
        ("num_rounds=2.5", "num_rounds: expected a whole number, got 2.5"),
        ("num_rounds=true", "num_rounds: expected a whole number, got True"),
        ("num_rounds=0", "num_rounds: expected a number from 1 on, got 0"),
        ("data.disjoint=1", "data.disjoint: expected true or false, got 1"),
        (
            "da_dpfl.wait_rule=fastet",
            "da_dpfl.wait_rule: expected 'fastest' or 'index', got 'fastet'; did you mean 'fastest'",
        ),
        ("da_dpfl.c=1.0", "da_dpfl.c: expected a number above 1.0, got 1.0"),
        ("da_dpfl.b=-0.1", "da_dpfl.b: expected a number from 0"),
        ("da_dpfl.target_sparsity=1", "da_dpfl.target_sparsity: expected a number below 1"),
        ("da_dpfl.pqi.p=2", "da_dpfl.pqi: expected 0 < p < q, both finite, got p=2.0, q=1.0"),
        (
            "algorithm=da_dpl",
            r"algorithm: expected FILE.py or one of \[.*'da_dpfl'.*\], got 'da_dpl'; did you mean",
        ),
        ("topology.degree=12", r"topology: expected a degree from 1 to 11 \(all others\), got 12"),
        (
            "topology.kind=edges",
            "topology: expected edges with the topology 'edges' and no other",
        ),
        ("model=3", "model: expected a section"),
        ("model.hidden=[1, 0]", "model.hidden.1: expected a number from 1 on, got 0"),
        ("training", "expected a change as key=value, .* got 'training'"),
        ("=3", "expected a change as key=value"),
        ("num_rounds.x=3", "num_rounds.x: expected a key of a section"),
    ],
)
def test_a_wrong_change_is_explained(change, message):
    with pytest.raises(ConfigError, match=message):
        config.load("demo", [change])


def test_all_problems_are_named_at_once():
    with pytest.raises(ConfigError) as caught:
        config.load("demo", ["seed=-1", "training.epochs=1.5", "data.alpha=0"])
    assert [line.split(":")[0] for line in str(caught.value).splitlines()] == [
        "seed",
        "data.alpha",
        "training.epochs",
    ]


def test_changes_are_toml_or_bare_words():
    loaded = config.load(
        "demo", ["training.lr=1", "data.name=x y", 'data.root="1"', "model.exempt=['a', 'b']", "name = new "]
    )
    assert (loaded.training.lr, loaded.data.name, loaded.data.root) == (1.0, "x y", "1")
    assert loaded.model.exempt == ["a", "b"] and loaded.name == "new"


def test_none_sets_back_to_the_default():
    assert config.load("demo", ["training.max_norm=10", "training.max_norm=none"]).training.max_norm is None
    assert config.load("demo", ["training.batch_size=none"]).training.batch_size == 128
    with pytest.raises(ConfigError, match="expected a known key"):
        config.load("demo", ["training.nothing=1", "training.nowhere.nothing=none"])


def test_a_key_that_is_set_by_default_can_be_unset():
    """Also in a file, in what is written, and in what is made of it."""
    clipped = config.load("demo", ["algorithm=dfedsam"])
    free = config.load("demo", ["algorithm=dfedsam", "dfedsam.max_norm=none"])
    assert clipped.dfedsam.max_norm == 10 and free.dfedsam.max_norm is None
    assert 'max_norm = "none"' in config.dumps(free) and "max_norm = 10.0" in config.dumps(clipped)
    assert config.loads(config.dumps(free)).dfedsam == free.dfedsam
    assert config.changed(free, ["seed=3"]).dfedsam.max_norm is None
    assert config.changed(free, ["dfedsam.max_norm=2"]).dfedsam.max_norm == 2
    assert config.changed(clipped, ["dfedsam.max_norm=none"]) == free
    with pytest.raises(ConfigError, match="dfedsam.momentum: expected a number, got 'none'"):
        config.loads(config.dumps(free).replace("momentum = 0.9", 'momentum = "none"'))


def test_a_file_may_extend_a_preset(tmp_path):
    (tmp_path / "mine.toml").write_text('extends = "demo"\nseed = 7\n[da_dpfl.pqi]\neta_c = 1.0\n')
    demo, mine = config.load("demo"), config.load(tmp_path / "mine.toml")
    assert mine.seed == 7 and mine.settings.pqi.eta_c == 1.0
    assert mine.settings.max_wait == demo.settings.max_wait and mine.data == demo.data


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed = ", "expected TOML, got"),
        ("seed = 1\nseed = 2", "expected TOML, got"),
        ("alpha = 0.1", "did you mean 'data.alpha'"),
        ("[trainning]\nlr = 1.0", "trainning: .* did you mean 'training'"),
        ("extends = 3", "extends: expected the name of a preset, got 3"),
        ('extends = "nobody"', "expected a preset out of"),
    ],
)
def test_a_wrong_file_is_explained(tmp_path, text, message):
    path = tmp_path / "x.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        config.load(path)


def test_missing_files_and_presets():
    with pytest.raises(ConfigError, match="got nobody.toml: No such file"):
        config.load("nobody.toml")
    with pytest.raises(
        ConfigError, match="expected a preset out of .*'demo'.* got 'dmo'; did you mean 'demo'"
    ):
        config.load("dmo")


@given(st.text(), st.floats(1e-300, 1e300), st.lists(st.text()))
def test_any_value_survives(description, lr, exempt):
    tree = {"description": description, "training": {"lr": lr}, "model": {"exempt": exempt}}
    first = config.parse(tree)
    assert config.loads(config.dumps(first)) == first
    assert tomllib.loads(config.dumps(first))["training"]["lr"] == lr


def _fields(section, path=()):
    """(path, field, may be unset) of every key."""
    for name, field in section.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, config.Section):
            yield from _fields(kind, (*path, name))
        else:
            yield (*path, name), field, section.unsets(name)


def _values(kind, bounds=()):
    """Everything that a type allows."""
    if get_origin(kind) is Annotated:
        inner, *more = get_args(kind)
        return _values(inner, [b for one in more for b in getattr(one, "metadata", [one])])
    if get_origin(kind) is Literal:
        return st.sampled_from(get_args(kind))
    if get_origin(kind) is list:
        return st.lists(_values(get_args(kind)[0]), max_size=3)
    if get_origin(kind) is dict:
        values = (
            st.booleans() | st.text(max_size=8) | st.integers(-5, 5) | st.lists(st.integers(0, 3), max_size=2)
        )
        return st.dictionaries(st.sampled_from(["depth", "heads_2"]), values, max_size=2)
    if get_args(kind):
        return st.one_of([_values(one) for one in get_args(kind)])
    limits = {name: getattr(b, name) for b in bounds for name in ("gt", "ge", "lt", "le") if hasattr(b, name)}
    low, high = limits.get("ge", limits.get("gt")), limits.get("le", limits.get("lt"))
    open_ends = {"exclude_min": "gt" in limits, "exclude_max": "lt" in limits}
    finite = {"allow_nan": False, "allow_infinity": False}
    return {
        type(None): st.none(),
        bool: st.booleans(),
        str: st.text(max_size=8) | st.just("none"),
        int: st.integers(low, high),
        float: st.floats(low, high, **finite, **{k: v for k, v in open_ends.items() if v}),
    }[kind]


FIELDS = list(_fields(type(config.load("demo"))))


@pytest.mark.parametrize("preset", config.presets())
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_the_plain_form_of_any_configuration_gives_it_back(preset, data):
    """Also through JSON: that is how a comparison keeps its plan."""
    tree = config.plain(config.load(preset))
    for path, field, unsets in data.draw(st.lists(st.sampled_from(FIELDS), max_size=5)):
        place, value = tree, data.draw(_values(field.annotation, field.metadata))
        for part in path[:-1]:
            place = place.setdefault(part, {})
        place[path[-1]] = "none" if value is None and unsets else value
    try:
        first = config.parse(tree)
    except ConfigError:  # keys that do not fit together
        assume(False)
    assert config.parse(config.plain(first)) == first
    assert config.parse(json.loads(json.dumps(config.plain(first)))) == first


@pytest.mark.parametrize("path", [".".join(path) for path, _, unsets in FIELDS if unsets])
def test_the_plain_form_keeps_what_was_set_to_none(path):
    first = config.changed(config.load("demo"), [f"{path}=none"])
    again = config.parse(config.plain(first))
    assert again == first and _at(again, path) is None is not _at(config.load("demo"), path)


def _at(value, path):
    for part in path.split("."):
        value = getattr(value, part)
    return value


def test_only_the_algorithm_that_runs_is_written():
    text = config.dumps(config.load("demo"))
    assert [line for line in text.splitlines() if line.startswith("[da_dpfl")] == [
        "[da_dpfl]",
        "[da_dpfl.pqi]",
    ]


def test_every_key_is_listed_with_a_default():
    listed = {key: (kind, default) for key, kind, default, _ in config.keys()}
    assert listed["training.lr"] == ("float", "0.1")
    assert listed["training.max_norm"] == ("float", "none")
    assert listed["model.hidden"] == ("list of int", "none")
    assert listed["da_dpfl.wait_rule"] == ('one of "fastest", "index"', '"fastest"')
    written = set(_flat(tomllib.loads(config.dumps(config.load("demo")))))
    assert written <= set(listed)
    unset = {key for key in set(listed) - written if key.split(".")[0] not in algorithms.registered()}
    assert all(listed[key][1] in ("none", "{}") for key in unset)


def _flat(tree, prefix=""):
    for key, value in tree.items():
        yield from _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else [prefix + key]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"kind": "gaussian"},
            "kind: expected 'homogeneous', 'uniform', 'lognormal' or 'trace', got 'gaussian'",
        ),
        ({"kind": "lognormal", "spread": -0.1}, "spread: expected a number from 0.* on, got -0.1"),
        ({"kind": "uniform", "spread": 1.0}, "^expected a spread below 1 of uniform devices, got 1.0"),
        ({"peak_flops": 0}, "peak_flops: expected a number from 1000.* on, got 0"),
        ({"radio_watts": -1}, "radio_watts: expected a number from 0.* on, got -1"),
        ({"spred": 0.1}, "spred: expected a known key, got spred = 0.1; did you mean 'spread'?"),
    ],
)
def test_a_section_alone_is_checked(values, message):
    with pytest.raises(ConfigError, match=message):
        config.section(config.Devices, values)
    assert config.section(config.Devices, {"spread": 0.25}) == config.Devices(spread=0.25)


def test_devices_fit_together():
    with pytest.raises(ConfigError, match="devices: expected a spread below 1 of uniform devices, got 1.0"):
        config.load("demo", ["devices.kind=uniform", "devices.spread=1"])
    assert config.load("demo", ["devices.kind=lognormal", "devices.spread=1"]).devices.spread == 1


def test_paper_settings():
    """algorithms.md 2 to 5: what the presets of the paper say."""
    for name, model, rounds in (
        ("cifar10", "resnet18", 500),
        ("cifar100", "vgg11", 500),
        ("ham10000", "alexnet", 300),
    ):
        loaded = config.load(name)
        assert (loaded.model.name, loaded.num_rounds, loaded.num_clients) == (model, rounds, 100)
        assert (loaded.topology.kind, loaded.topology.degree, loaded.settings.max_wait) == ("random", 10, 10)
        training = loaded.training
        assert (training.epochs, training.batch_size, training.lr, training.weight_decay) == (
            5,
            128,
            0.1,
            5e-4,
        )
        assert (training.momentum, training.max_norm) == (0, None)
        assert math.isclose(training.lr_decay, 0.998)
        assert (loaded.settings.delta_v, loaded.settings.b, loaded.settings.c) == (0.5, 0, 1.3)
        assert 0.01 <= loaded.settings.delta_pr <= 0.03 and loaded.settings.density == 0.5
    assert config.load("cifar100").settings.alpha0 == 0.5 and config.load("cifar10").settings.alpha0 == 0.3
    assert config.load("ham10000").data.alpha == 0.5 and config.load("ham10000").data.size == 64
    text = config.load("paper-text").settings
    assert (text.pqi.eta_c, text.pqi.gamma, text.drift) == (1.0, 0.9, "squared")
    code = config.load("authors-code").settings
    assert (code.reuse_index, code.wait_rule, code.max_wait_schedule) == ("id", "index", "staircase")
    assert code.shared_initial_mask and (code.pqi.eta_c, code.pqi.gamma) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ([], "demo"),
        (["data.name=mine"], "demo-mine"),
        (["data.name=sets/mine.npz", "training.lr=0.2"], "demo-mine"),
        (["data.name=/sets/a name (1)" + 99 * "x" + ".npz"], "demo-a_name__1_" + 20 * "x"),
        (["algorithm=dispfl"], "demo-dispfl"),
        (["algorithm=dispfl", "data.name=mine"], "demo-mine-dispfl"),
        (["data.name=digits", "algorithm=da_dpfl"], "demo"),
        (["data.name=none"], "demo"),
        (["data.name=mine", "name=own"], "own"),
    ],
)
def test_a_run_is_named_after_the_data_and_algorithm_that_were_changed(changes, name):
    assert config.load("demo", changes).name == name


def test_a_file_adds_to_the_name_that_it_inherits(tmp_path):
    (tmp_path / "mine.toml").write_text('extends = "demo"\nalgorithm = "beer"')
    assert config.load(tmp_path / "mine.toml").name == "demo-beer"
    assert config.load(tmp_path / "mine.toml", ["data.name=mine"]).name == "demo-beer-mine"
    (tmp_path / "own.toml").write_text('extends = "demo"\nname = "own"\nalgorithm = "beer"')
    assert config.load(tmp_path / "own.toml").name == "own"
    assert config.changed(config.load("demo"), ["algorithm=beer"]).name == "demo"  # no user asked for it


def test_a_quoted_none_is_a_string():
    assert config.load("demo", ['name="none"']).name == "none"


def test_a_description_goes_with_what_it_describes(tmp_path):
    assert config.load("demo", ["training.lr=0.5"]).description == config.load("demo").description != ""
    for change in ("data.name=cifar10", "model.name=mlp", "num_clients=4"):
        assert config.load("demo", [change]).description == ""
    assert config.load("demo", ["num_clients=4", "description=four"]).description == "four"
    (tmp_path / "mine.toml").write_text('extends = "demo"\nnum_clients = 4\n')
    assert config.load(tmp_path / "mine.toml").description == ""
