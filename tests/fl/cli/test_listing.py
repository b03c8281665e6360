"""`sparsefl list`: whole sentences, and lines that grep finds where there is no terminal."""

from io import StringIO

import pytest
from rich.console import Console
from typer.testing import CliRunner

from fl import algorithms, config
from fl.cli.app import app
from fl.cli.listing import first_sentence, show_list
from fl.config.hardware import HARDWARE


def listed(*args):
    done = CliRunner().invoke(app, ["list", *args], prog_name="sparsefl")
    assert done.exit_code == 0, done.output
    return done.output


def test_keys_are_one_line_each_in_a_pipe():
    lines = listed("--keys").splitlines()
    assert [line.split()[0] for line in lines] == [row[0] for row in config.keys()]
    for line, (key, kind, default, meaning) in zip(lines, config.keys(), strict=True):
        assert line.startswith(f"{key} ") and f" {kind} " in line and default in line
        assert meaning and line.endswith(meaning)
    (found,) = [line for line in lines if "classes_per_client" in line]
    assert found.startswith("data.classes_per_client ") and max(map(len, lines)) > 120


def test_keys_are_found_by_a_part_of_their_name():
    keys = [line.split()[0] for line in listed("--keys", "data.").splitlines()]
    assert "data.alpha" in keys and keys == [row[0] for row in config.keys() if "data." in row[0]]
    assert [line.split()[0] for line in listed("beer").splitlines()] == ["beer"]
    done = CliRunner().invoke(app, ["list", "--keys", "xyzzy"], prog_name="sparsefl")
    assert done.exit_code == 2 and "expected part of the name of a key, got 'xyzzy'" in done.output


def test_presets_and_algorithms_are_whole_sentences():
    lines = dict(line.split(maxsplit=1) for line in listed().splitlines() if line)
    assert set(lines) == {*config.presets(), *algorithms.registered(), *HARDWARE}
    for name, text in config.presets().items():
        assert lines[name] == text
    for name in algorithms.registered():
        assert lines[name].endswith(".") and lines[name].count("(") == lines[name].count(")")
    assert all(lines[name].startswith("modelled: ") for name in HARDWARE)
    assert lines["beer"].startswith(
        "BEER: gradient tracking with compressed gossip on a fixed undirected graph"
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("One that goes\non. Another.", "One that goes on."),
        ("\nLong et al. (arXiv 24.15), 1.5.\n\n  a formula.", "Long et al. (arXiv 24.15), 1.5."),
        ("No end\n\nmore.", "No end"),
        (None, ""),
    ],
)  # fmt: skip
def test_first_sentence(text, sentence):
    assert first_sentence(text) == sentence


def test_a_terminal_gets_a_table_that_fits():
    console = Console(force_terminal=True, width=90, file=StringIO(), color_system=None)
    assert show_list(console, keys=True) == 0
    lines = console.file.getvalue().splitlines()
    assert lines[0].split() == ["key", "type", "default", "meaning"] and max(map(len, lines)) <= 90
