"""Checkpoints: whole or not there, the last two are kept, damage of any kind is found and named."""

import errno
import json
import os

import pytest
import torch
from helpers import randn

import sparse_engine as se
from fl import checkpoint, store
from fl.checkpoint import CheckpointError, load_checkpoint, save_checkpoint

LAYOUT = se.Layout(("w",), ((3, 50),))
SIZES = {"metrics.jsonl": 12}


def a_state(seed=0):
    bitmap = LAYOUT.bitmap_of({"w": randn(150, seed).view(3, 50) > 0})
    return se.State(
        LAYOUT, bitmap, randn(bitmap.nnz, seed), torch.empty(0), torch.empty(0, dtype=torch.int64)
    )


def save(folder, t):
    return save_checkpoint(folder, t, "seed = 0\n", SIZES, (a_state(t), a_state(t + 100), t / 7))


def load(folder):
    found, problems = load_checkpoint(folder)
    *states, number = store.put_together(found.state, found.tensors, {}, LAYOUT)
    assert number == found.round / 7 and (found.config, found.sizes) == ("seed = 0\n", SIZES)
    for state, seed in zip(states, (found.round, found.round + 100), strict=True):
        assert torch.equal(state.values, a_state(seed).values)
    return found.round, problems


def test_the_newest_is_read_and_two_are_kept(tmp_path):
    for t in range(5):
        save(tmp_path, t)
        assert load(tmp_path) == (t, [])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["round-00003", "round-00004"]


def test_many_files(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "SHARD", 0)
    folder = save(tmp_path, 3)
    assert len(list(folder.glob("*.safetensors"))) == 5  # 8 tensors, of which 4 are empty
    assert load(tmp_path) == (3, [])


def damages():
    def cut(path):
        os.truncate(path, path.stat().st_size - 1)

    def flip(path):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)

    def empty(path):
        path.write_bytes(b"")

    def other(path):
        path.write_bytes(b"x" * path.stat().st_size)

    return [cut, flip, empty, other, os.remove]


@pytest.mark.parametrize("file", ["state.json", "tensors-00000.safetensors"])
@pytest.mark.parametrize("damage", damages())
def test_damage_is_found_and_the_one_before_is_used(tmp_path, file, damage):
    save(tmp_path, 3)
    damage(save(tmp_path, 4) / file)
    round_, (problem,) = load(tmp_path)
    assert round_ == 3 and "round-00004" in problem and file in problem
    save(tmp_path, 4)  # the run goes on and replaces it
    assert load(tmp_path) == (4, [])


def test_every_flipped_bit_of_the_json_is_found(tmp_path):
    path = save(tmp_path, 4) / "state.json"
    good = path.read_bytes()
    body = good.index(b'"body"')
    for i in range(body, len(good) - 1, 7):
        path.write_bytes(good[:i] + bytes([good[i] ^ 1]) + good[i + 1 :])
        if json_equal(path.read_bytes(), good):
            continue
        with pytest.raises(CheckpointError, match=r"state.json|expected format"):
            load_checkpoint(tmp_path)


def json_equal(a, b):
    try:
        return json.loads(a) == json.loads(b)
    except ValueError:
        return False


def test_all_damaged_names_all(tmp_path):
    for t in (3, 4):
        (save(tmp_path, t) / "state.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"(?s)round-00004.*round-00003"):
        load_checkpoint(tmp_path)


def test_none_is_an_error(tmp_path):
    with pytest.raises(CheckpointError, match="got none: no round was finished"):
        load_checkpoint(tmp_path / "checkpoint")


def test_another_format_or_round_is_refused(tmp_path):
    folder = save(tmp_path, 4)
    folder.rename(tmp_path / "round-00005")
    with pytest.raises(CheckpointError, match="expected format 1 of round 5, got format 1 of round 4"):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize("call", range(6))
@pytest.mark.parametrize("function", ["fsync", "rename", "mkdir"])
def test_a_full_disk_leaves_the_last_one_alone(tmp_path, monkeypatch, function, call):
    """Whichever call fails: a sentence, nothing half-written under a good name, a whole one to go on from."""
    save(tmp_path, 3)
    real, calls = getattr(os, function), []

    def full(*arguments, **options):
        calls.append(1)
        if len(calls) > call:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*arguments, **options)

    monkeypatch.setattr(os, function, full)
    try:
        save(tmp_path, 4)
        assert len(calls) <= call  # it never came to that
        monkeypatch.undo()
        assert load(tmp_path) == (4, [])
    except CheckpointError as error:
        monkeypatch.undo()
        assert "checkpoint of round 4" in str(error) and "No space left" in str(error)
        left, _ = load(tmp_path)  # 4, when only the folder's own fsync failed
        assert "MB are needed" in str(error) and f"round {left} is untouched" in str(error)
        assert not list(tmp_path.glob(".round-*"))


def test_what_a_killed_process_left_is_removed(tmp_path):
    save(tmp_path, 3)
    draft = tmp_path / ".round-00004"
    draft.mkdir()
    (draft / "tensors-00000.safetensors").write_bytes(b"half")
    assert load(tmp_path) == (3, [])
    checkpoint.clean(tmp_path)
    assert not draft.exists()
    assert load(tmp_path) == (3, [])
