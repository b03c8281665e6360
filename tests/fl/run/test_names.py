"""The names of a run directory, and what a run may be called."""

import pytest

from fl import config
from fl.config import ConfigError, words
from fl.run import names


@pytest.mark.parametrize("name", ["demo", "my run 2", "a+b_c-1.5", "Größe", "x" * 100])
def test_runs_may_be_called(name):
    assert words.run_name(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "../../x",
        "/tmp/x",
        "a/b",
        "..",
        ".hidden",
        "",
        " ",
        "x[/red]",
        "a\\b",
        "a\nb",
        "a\x00",
        "x" * 101,
        "<b>",
    ],
)
def test_a_name_stays_inside_runs(name):
    with pytest.raises(ValueError, match="expected letters, digits, blanks and any of"):
        words.run_name(name)
    with pytest.raises(ConfigError, match="name: expected letters"):
        config.parse({"name": name})


def test_folders_of_checkpoints():
    assert names.round_of(names.round_folder(12)) == 12 and names.round_of("round-123456") == 123456
    strange = ("round-1", "round-²³⁴⁵⁶", "round-00001x", ".round-00001", "round-000001", "round--0001")
    assert [names.round_of(name) for name in strange] == [None] * 6
    assert names.is_abandoned(names.draft_folder(3)) and names.is_abandoned(names.removed_folder(3))
    assert not any(map(names.is_abandoned, (".round-x", "..", ".git", "round-00003")))


def test_shards():
    assert names.is_shard(names.shard(7))
    assert not any(
        map(names.is_shard, ("/dev/zero", "../tensors-00000.safetensors", "tensors-0.safetensors"))
    )
