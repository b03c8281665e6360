"""Code that a configuration names: where it is, what is wrong with it, and that nothing runs unasked."""

import hashlib
from importlib.metadata import EntryPoint

import pytest
from own_code import NETS

from fl import config
from fl.config import ConfigError, code
from fl.errors import UntrustedError


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code.forget()
    (tmp_path / "nets.py").write_text(NETS)
    yield tmp_path
    code.forget()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("nets.py:Net", ("nets.py", "Net")),
        ("a/b/nets.py:Net", ("a/b/nets.py", "Net")),
        ("package.module:Net", ("package.module", "Net")),
        ("mine.py", ("mine.py", "")),
        ("digits", None),
        ("sets/mine.npz", None),
        ("nets.py:not-a-name", None),
        (".py", None),
        (":", None),
        ("", None),
    ],
)
def test_what_refers_to_code(text, found):
    assert code.reference(text) == found


def test_nothing_runs_that_nobody_named(here):
    (here / "nets.py").write_text("open('ran', 'w')")
    with pytest.raises(
        UntrustedError, match="model.name: .* allow to import nets.py.*--code nets.py, or --trust"
    ):
        code.load("nets.py:Net", "model.name")
    with pytest.raises(UntrustedError):
        code.load("os:system", "model.name")
    code.allow("other.py")
    with pytest.raises(UntrustedError):
        code.load("nets.py:Net", "model.name")
    assert not (here / "ran").exists()
    code.trust()
    with pytest.raises(ConfigError, match="expected a name in nets.py out of .*got 'Net'"):
        code.load("nets.py:Net", "model.name")
    assert (here / "ran").exists()


def test_what_ran_is_what_the_hash_is_of_and_a_changed_file_runs_anew(here):
    code.allow("nets.py")
    first = code.load("nets.py:NUMBER", "model.name")
    assert first == (3, "nets.py", hashlib.sha256(NETS.encode()).hexdigest())
    assert code.load("nets.py:TinyNet", "x").value is code.load("nets.py:TinyNet", "x").value
    (here / "nets.py").write_text("NUMBER = 4")
    second = code.load("nets.py:NUMBER", "model.name")
    assert second.value == 4 and second.sha256 != first.sha256


def test_a_file_may_import_what_lies_beside_it_and_a_module_is_found_here(here):
    (here / "beside_it.py").write_text("VALUE = 5")
    (here / "uses.py").write_text("from beside_it import VALUE")
    code.trust()
    assert code.load("uses.py:VALUE", "x").value == 5
    found = code.load("beside_it:VALUE", "x")
    assert found.value == 5 and found.sha256 == hashlib.sha256(b"VALUE = 5").hexdigest()


@pytest.mark.parametrize(
    ("text", "source", "message"),
    [
        (
            "gone.py:Net",
            None,
            r"model.name: expected a file of Python, got gone.py: No such file .*gone.py\)",
        ),
        (
            "bad.py:Net",
            "x = 1\n\ny = unknown\n",
            r"got bad.py, line 3: NameError: name 'unknown' is not defined",
        ),
        ("bad.py:Net", "x = 1\ndef f(:\n", r"got bad.py, line 2: SyntaxError: invalid syntax"),
        ("bad.py:Net", "import nowhere_to_be_found", r"bad.py, line 1: ModuleNotFoundError: No module named"),
        ("bad.py:Net", "raise ValueError", r"bad.py, line 1: ValueError$"),
        ("nowhere.to_be:found", None, "expected a module that can be imported, got nowhere.to_be: Mod"),
        ("nets.py:NUMBER", None, "expected a class or a function, got nets.py:NUMBER, which is of type int"),
    ],
)
def test_what_is_wrong_is_a_sentence(here, text, source, message):
    code.trust()
    if source is not None:
        (here / "bad.py").write_text(source)
    with pytest.raises(ConfigError, match=message):
        code.called(text, "model.name")


def test_files_and_changes_of_the_user_name_code_and_run_directories_do_not(here):
    (here / "mine.toml").write_text(
        'extends = "demo"\n[model]\nname = "nets.py:TinyNet"\noptions = {hidden = 4}\n'
    )
    loaded, notes = config.read("mine.toml", ["model.options.depth=2"])
    assert loaded.model.options == {"hidden": 4, "depth": 2} and loaded.model.width is None
    assert any("model.width has no effect and is left out" in note for note in notes)
    assert code.load("nets.py:TinyNet", "model.name")
    assert config.loads(config.dumps(loaded)) == loaded

    code.forget()
    (here / "run").mkdir()
    (here / "run" / "config.toml").write_text(config.dumps(loaded))
    config.read("run")
    with pytest.raises(UntrustedError):
        code.load("nets.py:TinyNet", "model.name")
    config.read("run", ["model.name=nets.py:TinyNet"])
    assert code.load("nets.py:TinyNet", "model.name")


def test_options_are_for_networks_that_are_not_built_in():
    with pytest.raises(ConfigError, match="model.options: expected a key that has an effect"):
        config.load("demo", ["model.options.depth=2"])
    with pytest.raises(ConfigError, match="model.options: expected names of arguments with finite"):
        config.load("demo", ["model.name=nets.py:TinyNet", "model.options.depth=inf"])
    with pytest.raises(ConfigError, match="model.options: expected a table of names and values, got 3"):
        config.load("demo", ["model.options=3"])
    (here_notes := config.read("demo", ["model.name=nets.py:TinyNet", "model.options.a=1"]).notes)
    assert [note for note in here_notes if "width" in note]


def test_a_run_is_named_after_its_code(here):
    changes = ["data.name=sub/loader.py:load", "model.name=nets.py:TinyNet"]
    assert config.load("demo", changes).name == "demo-loader"


def test_entry_points(monkeypatch, here):
    (here / "fake_networks.py").write_text("def net(num_classes): ...")
    points = [
        EntryPoint("tiny", "fake_networks:net", "sparsefl.networks"),
        EntryPoint("broken", "nowhere_to_be_found:net", "sparsefl.networks"),
    ]
    monkeypatch.syspath_prepend(here)
    monkeypatch.setattr(code, "entry_points", lambda group: [one for one in points if one.group == group])
    code.installed.cache_clear()
    try:
        assert [*code.installed("model.name")] == ["tiny", "broken"] and not code.installed("algorithm")
        found = code.called("tiny", "model.name")  # installed: it needs no trust
        assert found.value.__name__ == "net" and found.origin == "fake_networks:net" and found.sha256
        with pytest.raises(ConfigError, match="expected broken of .*ModuleNotFoundError"):
            code.load("broken", "model.name")
    finally:
        code.installed.cache_clear()
