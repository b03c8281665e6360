"""Settings without effect: refused on the command line, noted in a file, said in `list --keys`."""

import inspect
import tomllib

import pytest

import sparse_engine as se
from fl import algorithms, config
from fl.compare import plan as compare_plan
from fl.config import ConfigError, effect

IDLE = [
    (["algorithm=dispfl", "da_dpfl.density=0.1"], "da_dpfl.density", "it counts with algorithm = da_dpfl"),
    (["data.partition=iid", "data.alpha=0.1"], "data.alpha", "it counts with data.partition = dirichlet"),
    (["data.classes_per_client=3"], "data.classes_per_client", "with data.partition = pathological"),
    (["data.root=/x"], "data.root", "with another data.name than digits or a path"),
    (
        ["topology.kind=ring", "topology.degree=7"],
        "topology.degree",
        "with topology.kind = random or regular",
    ),
    (["topology.edges=links.txt"], "topology.edges", "with topology.kind = edges"),
    (["topology.kind=full", "topology.redraw=true"], "topology.redraw", "than full or edges"),
    (["model.name=lenet5", "model.width=8"], "model.width", "with model.name = small_cnn"),
    (["model.norm=batch"], "model.norm", "with model.name = resnet18 or vgg11"),
    (["model.hidden=[8]"], "model.hidden", "with model.name = mlp"),
    (["model.dropout=0.5"], "model.dropout", "with model.name = alexnet"),
    (["messages.error_feedback=false"], "messages.error_feedback", "with another messages.values than fp32"),
    (["devices.spread=0.2"], "devices.spread", "with another devices.kind than homogeneous"),
    (
        ["da_dpfl.max_wait=0", "da_dpfl.wait_rule=index"],
        "da_dpfl.wait_rule",
        "another da_dpfl.max_wait than 0",
    ),
    (["da_dpfl.grow=random", "da_dpfl.grow_batches=2"], "da_dpfl.grow_batches", "da_dpfl.grow = gradient"),
    (["da_dpfl.grow=random", "da_dpfl.grow_from=last_batch"], "da_dpfl.grow_from", "da_dpfl.grow = gradient"),
    (
        ["da_dpfl.grow_from=last_batch", "da_dpfl.grow_batches=2"],
        "da_dpfl.grow_batches",
        "da_dpfl.grow_from = fresh",
    ),
    (
        ["algorithm=fedavg", "training.max_norm=5"],
        "training.max_norm",
        "fedavg takes fedavg.max_norm instead",
    ),
    (
        ["algorithm=fedavg", "topology.redraw=true"],
        "topology.redraw",
        "fedavg has a server and no neighbours",
    ),
    (
        ["algorithm=fedavg", "topology.degree=2", "fedavg.clients_per_round=4"],
        "topology.degree",
        "fedavg has a server and no neighbours",
    ),
    (
        ["algorithm=ditto", "training.epochs=1", "ditto.global_epochs=1", "ditto.personal_epochs=1"],
        "training.epochs",
        "ditto takes ditto.global_epochs and ditto.personal_epochs instead",
    ),
    (["algorithm=beer", "training.lr=1.0"], "training.lr", "beer takes beer.lr instead"),
    (["algorithm=beer", "messages.values=q8"], "messages.values", "beer sends beer.compression.bits"),
    (
        ["algorithm=beer", "beer.compression.keep=0.5"],
        "beer.compression.keep",
        "beer.compression.kind = top_k",
    ),
    (["algorithm=dfedsam", "training.momentum=0.5"], "training.momentum", "takes dfedsam.momentum instead"),
]


@pytest.mark.parametrize(("changes", "key", "why"), IDLE, ids=[" ".join(changes) for changes, _, _ in IDLE])
def test_a_change_without_effect_is_refused(changes, key, why):
    with pytest.raises(ConfigError) as caught:
        config.load("demo", changes)
    (line,) = str(caught.value).splitlines()
    assert line.startswith(f"{key}: expected a key that has an effect here: ") and why in line


@pytest.mark.parametrize(("changes", "key", "why"), IDLE, ids=[" ".join(changes) for changes, _, _ in IDLE])
def test_the_same_key_in_a_file_is_noted(tmp_path, changes, key, why):
    """But not those of other algorithms: a file may hold the sections of several."""
    tree = {}
    for change in changes:
        path, value = change.split("=")
        section, _, last = path.rpartition(".")
        written = value if value[0] in "[0123456789tf" and value != "fedavg" else f'"{value}"'
        written = f'"{value}"' if value == "full" else written
        tree.setdefault(section, []).append(f"{last} = {written}")
    text = "\n".join(tree.pop("", []))
    text += "".join(f"\n[{section}]\n" + "\n".join(lines) for section, lines in tree.items())
    (tmp_path / "mine.toml").write_text('extends = "demo"\n' + text)
    loaded = config.read(tmp_path / "mine.toml")
    if key == "da_dpfl.density":
        assert loaded.notes == ()
        return
    (note,) = loaded.notes
    assert note.startswith(f"{key} has no effect") and why in note


def test_what_makes_a_key_count_lets_it_pass():
    loaded = config.load(
        "demo",
        [
            "data.partition=pathological",
            "data.classes_per_client=3",
            "devices.kind=uniform",
            "devices.spread=0.2",
        ],
    )
    assert loaded.data.classes_per_client == 3 and loaded.devices.spread == 0.2


def test_what_a_preset_sets_is_no_ones_mistake():
    """demo sets alpha and a degree: they wait for the next change of mind."""
    loaded, notes = config.read("demo", ["data.partition=pathological", "topology.kind=ring"])
    assert loaded.data.alpha == 0.5 and notes == ()


def test_another_network_loses_the_options_of_the_presets(tmp_path):
    """demo has width = 16, which lenet5 does not know."""
    loaded, notes = config.read("demo", ["model.name=lenet5"])
    assert loaded.model.width is None
    assert notes == ("model.width has no effect and is left out: it counts with model.name = small_cnn",)


def test_none_is_never_without_effect():
    """It says what holds anyway; but unsetting a key that is set by default is a setting."""
    assert config.load("demo", ["model.name=mlp", "model.width=none"]).model.width is None
    with pytest.raises(ConfigError, match="fedavg.max_norm: .* it counts with algorithm = fedavg"):
        config.load("demo", ["fedavg.max_norm=none"])


def test_the_complete_file_of_a_run_has_no_notes(tmp_path):
    (tmp_path / "mine.toml").write_text('algorithm = "fedavg"\n[topology]\nkind = "ring"\ndegree = 3')
    cfg = config.load(tmp_path / "mine.toml", ["data.partition=pathological"])
    (tmp_path / "config.toml").write_text(config.dumps(cfg))
    assert config.read(tmp_path / "config.toml") == (cfg, ())
    changed, notes = config.read(tmp_path, ["data.partition=iid"])
    assert changed.data.partition == "iid" and notes == ()
    with pytest.raises(ConfigError, match="data.alpha: expected a key that has an effect"):
        config.read(tmp_path, ["data.alpha=0.1"])


def test_notes_stand_at_the_head_of_the_file():
    text = config.dumps(config.load("demo"), ["first", "two\nlines"])
    assert text.startswith("# first\n# two\\U0000000alines\nname = ")
    assert tomllib.loads(text)["name"] == "demo"


def test_a_comparison_refuses_what_none_of_its_algorithms_reads():
    with pytest.raises(ConfigError, match="ditto.pull: expected a key that has an effect here"):
        compare_plan.make("demo", "da_dpfl,dispfl", None, ["ditto.pull=1"])
    with pytest.raises(ConfigError, match="training.momentum: .*dfedsam takes dfedsam.momentum instead"):
        compare_plan.make("demo", "dfedsam", None, ["training.momentum=0.5"])
    with pytest.raises(ConfigError, match="algorithm: .* --algorithms says what runs"):
        compare_plan.make("demo", "ditto", None, ["algorithm=beer"])
    with pytest.raises(ConfigError, match="beer.lr: expected a key that has an effect here"):
        compare_plan.make("demo", "ditto,beer", None, ["ditto:beer.lr=1.0"])


def test_a_comparison_takes_what_one_of_its_algorithms_reads():
    plan = compare_plan.make("demo", "da_dpfl,ditto", None, ["training.epochs=1", "ditto.pull=0.3"])
    assert plan.base.training.epochs == 1 and plan.base.ditto.pull == 0.3 and plan.base.name == "demo"
    own = ["a:data.partition=pathological", "data.classes_per_client=3"]
    assert compare_plan.make("demo", "a=da_dpfl,ditto", None, own).base.data.classes_per_client == 3


def test_options_of_networks_are_declared_as_their_functions_take_them():
    """A new network, or a new option of one, must be named beside the key."""
    for name in (name for name in se.models.__all__ if name != "by_name"):
        takes = inspect.signature(getattr(se.models, name)).parameters
        loaded = config.load("demo", [f"model.name={name}"])
        idle = effect.unfit(loaded, algorithms.registered())
        for option in ("norm", "width", "hidden", "dropout"):
            assert (option in takes) == (f"model.{option}" not in idle), (name, option)


def test_keys_say_when_they_count():
    meaning = {key: text for key, _, _, text in config.keys()}
    assert meaning["data.alpha"].endswith("; only with partition = dirichlet")
    assert meaning["messages.error_feedback"].endswith("; only with another values than fp32")


def test_every_key_has_a_meaning():
    assert [key for key, _, _, meaning in config.keys() if not meaning.split("; only with")[0]] == []


def test_every_replaced_key_exists():
    """`unread` names keys or sections by text."""
    known = {key for key, *_ in config.keys()}
    known |= {key.rpartition(".")[0] for key in known}
    for name in algorithms.registered():
        cfg = config.load("demo", [f"algorithm={name}"])
        assert set(effect.by_algorithm(cfg)) <= known
