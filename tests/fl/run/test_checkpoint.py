"""Checkpoints: whole or not there, the last two are kept, damage of any kind is found and named."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers import randn

import sparse_engine as se
from fl.clients import plain as store
from fl.errors import CheckpointError, RunDirError
from fl.run import checkpoint
from fl.run.checkpoint import newest, save_checkpoint
from fl.run.growing import Mark
from fl.run.history import Part

ROOT = Path(__file__).parents[3]
LAYOUT = se.Layout(("w",), ((3, 50),))
MARKS = {"metrics.jsonl": Mark(12, "0" * 64), "clients.jsonl": Mark(0, "f" * 64)}
HISTORY = (Part(0, 2, {"torch": "9.9"}, {"cpu": "fast"}),)


def a_state(seed=0):
    bitmap = LAYOUT.bitmap_of({"w": randn(150, seed).view(3, 50) > 0})
    return se.Model(
        LAYOUT, bitmap, randn(bitmap.nnz, seed), torch.empty(0), torch.empty(0, dtype=torch.int64)
    )


def save(folder, t):
    save_checkpoint(folder, t, "seed = 0\n", MARKS, HISTORY, (a_state(t), a_state(t + 100), t / 7))
    return folder / f"round-{t:05}"


def load(folder):
    def read(head):
        tensors = checkpoint.tensors_of(folder, head, store.wanted(head.state, LAYOUT))
        return head, store.put_together(head.state, tensors, {}, LAYOUT)

    (head, (*states, number)), problems = newest(folder, read)
    assert number == head.round / 7
    assert (head.config, head.marks, head.history) == ("seed = 0\n", MARKS, HISTORY)
    for state, seed in zip(states, (head.round, head.round + 100), strict=True):
        assert torch.equal(state.values, a_state(seed).values)
        assert torch.equal(state.bitmap.words, a_state(seed).bitmap.words)
    return head.round, problems


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
            load(tmp_path)


def json_equal(a, b):
    try:
        return json.loads(a) == json.loads(b)
    except ValueError:
        return False


def test_all_damaged_names_all(tmp_path):
    for t in (3, 4):
        (save(tmp_path, t) / "state.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"(?s)round-00004.*round-00003"):
        load(tmp_path)


def test_none_is_an_error(tmp_path):
    with pytest.raises(CheckpointError, match="got none: no round was finished"):
        load(tmp_path / "checkpoint")


def test_another_format_or_round_is_refused(tmp_path):
    folder = save(tmp_path, 4)
    folder.rename(tmp_path / "round-00005")
    with pytest.raises(CheckpointError, match="expected format 4 of round 5, got format 4 of round 4"):
        load(tmp_path)


def rewritten(path, **changes):
    """state.json with other keys, and a checksum that fits: it is no signature."""
    body = json.loads((path / "state.json").read_text())["body"] | changes
    digest = checkpoint._digest(body)
    (path / "state.json").write_text(json.dumps({"sha256": digest, "body": body}))


@pytest.mark.parametrize("older", [1, 2])
def test_the_format_of_older_versions_is_refused_by_name(tmp_path, older):
    rewritten(save(tmp_path, 4), format=older)
    message = f"got format {older} of round 4; finish it with the version .*wrote it"
    with pytest.raises(CheckpointError, match=message):
        load(tmp_path)


GOOD = {"bytes": 0, "sha256": "0" * 64}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"marks": {"/etc/passwd": GOOD}}, "marks: expected those of"),
        ({"marks": {"metrics.jsonl": GOOD}}, "marks: expected those of"),
        ({"marks": {"metrics.jsonl": {"bytes": -1, "sha256": "0" * 64}}}, "expected bytes and a checksum"),
        ({"marks": {"metrics.jsonl": {"bytes": True, "sha256": "0" * 64}}}, "expected bytes and a checksum"),
        ({"marks": {"metrics.jsonl": {"bytes": 10**20, "sha256": "0" * 64}}}, "expected bytes and a"),
        ({"marks": {"metrics.jsonl": {"bytes": 1, "sha256": "x" * 64}}}, "expected bytes and a checksum"),
        ({"marks": []}, "marks: expected names"),
        ({"files": {"/dev/zero": GOOD}}, "files: expected tensors-00000.safetensors and so on"),
        ({"files": {"../../x.safetensors": GOOD}}, "files: expected tensors-00000.safetensors"),
        ({"files": {"tensors-00001.safetensors": GOOD}}, "files: expected tensors-00000.safetensors"),
        ({"config": 3}, "config: expected text, got 3"),
        ({"history": []}, "history: expected at least one part"),
        ({"history": [{}]}, "history.0.: expected the keys"),
        ({"more": 1}, "state.json: expected the keys"),
        ({"state": {"state": "0", "more": 1}}, "state"),
    ],
)
def test_names_sizes_and_types_are_checked_before_anything_is_opened(tmp_path, changes, message):
    rewritten(save(tmp_path, 4), **changes)
    with pytest.raises((CheckpointError, store.StoreError), match=message) as refused:
        *_, number = load(tmp_path)
    assert "round-00004" in str(refused.value)


def test_a_checkpoint_folder_that_is_a_link_is_refused(tmp_path):
    save(tmp_path / "elsewhere", 3)
    (tmp_path / "checkpoint").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunDirError, match="expected a folder, got a link"):
        load(tmp_path / "checkpoint")
    with pytest.raises(RunDirError, match="expected a folder, got a link"):
        save(tmp_path / "checkpoint", 4)
    assert load(tmp_path / "elsewhere") == (3, [])


def test_links_and_pipes_in_a_checkpoint_are_left_aside(tmp_path):
    save(tmp_path, 3)
    newer = save(tmp_path, 4)
    shard = newer / "tensors-00000.safetensors"
    shard.rename(tmp_path / "x")
    shard.symlink_to(tmp_path / "x")
    assert load(tmp_path)[0] == 3
    shard.unlink()
    os.mkfifo(shard)  # opening it would wait for ever
    round_, (problem,) = load(tmp_path)
    assert round_ == 3 and "expected a file, got a pipe" in problem


@pytest.mark.timeout(20)
def test_pipes_and_links_in_place_of_folders_are_removed_unopened(tmp_path):
    """Half-written checkpoints, half-removed ones and old ones: whatever has such a name goes."""
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "x").write_text("precious")
    folder = tmp_path / "checkpoint"
    save(folder, 4)
    for name in ("round-00001", ".round-00005"):
        os.mkfifo(folder / name)
    (folder / "round-00002").symlink_to(tmp_path / "victim")
    (folder / ".removed-round-00003").symlink_to(tmp_path / "victim")
    checkpoint.clean(folder)
    save(folder, 5)
    checkpoint.prune(folder, 5)
    assert sorted(os.listdir(folder)) == ["round-00004", "round-00005"]
    assert (tmp_path / "victim" / "x").read_text() == "precious"


def test_other_programs_read_the_tensors(tmp_path):
    from safetensors.torch import load_file

    found = load_file(save(tmp_path, 4) / "tensors-00000.safetensors")
    assert set(found) == {f"{i}/{part}" for i in (0, 1) for part in ("bitmap", "values", "rest", "integers")}
    assert torch.equal(found["1/values"], a_state(104).values)
    assert torch.equal(found["0/bitmap"], a_state(4).bitmap.words)


def test_later_damaged_ones_do_not_push_out_the_new_one(tmp_path):
    for t in (3, 8, 9):
        save(tmp_path, t)
    for t in (8, 9):
        (tmp_path / f"round-{t:05}" / "state.json").write_text("{}")
    save(tmp_path, 3)
    save(tmp_path, 4)
    assert sorted(os.listdir(tmp_path)) == ["round-00003", "round-00004"]


def test_out_of_memory_is_a_sentence_and_leaves_the_last_one(tmp_path, monkeypatch):
    save(tmp_path, 3)

    def full(*_):
        raise MemoryError

    monkeypatch.setattr(checkpoint.shards, "_bytes", full)
    with pytest.raises(
        CheckpointError, match="round 4 to .*: out of memory; the checkpoint of round 3 is unt"
    ):
        save(tmp_path, 4)
    monkeypatch.undo()
    assert load(tmp_path) == (3, []) and os.listdir(tmp_path) == ["round-00003"]


ROOM = """
import pathlib, resource, sys, tempfile
import torch
import sparse_engine as se
from fl.run import checkpoint
layout = se.Layout(("w",), ((5000, 5000),))
bitmap = layout.bitmap_of({"w": torch.ones(5000, 5000, dtype=torch.bool)})
values = torch.arange(25_000_000, dtype=torch.float32)
state = se.Model(layout, bitmap, values, torch.empty(0), torch.empty(0, dtype=torch.int64))
used = int(pathlib.Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (32 << 20), resource.RLIM_INFINITY))
folder = pathlib.Path(sys.argv[1])
checkpoint.save_checkpoint(folder, 0, "", {}, (), state)
print(sum(file.stat().st_size for file in folder.rglob("*.safetensors")))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits memory by RLIMIT_AS")
def test_saving_takes_no_second_copy_of_the_state(tmp_path):
    """100 MB of weights are saved where 32 MB are left."""
    done = subprocess.run(
        [sys.executable, "-c", ROOM, str(tmp_path / "checkpoint")],
        capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 100_000_000


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


def test_a_removal_that_was_killed_leaves_nothing_that_looks_whole(tmp_path, monkeypatch):
    """Whichever file is removed last, and whatever is left: the next start clears it away."""
    save(tmp_path, 3)
    save(tmp_path, 4)
    monkeypatch.setattr(checkpoint, "remove_folder", lambda path: None)  # killed before it
    save(tmp_path, 5)
    assert checkpoint.rounds(tmp_path) == [5, 4] and ".removed-round-00003" in os.listdir(tmp_path)
    monkeypatch.undo()
    checkpoint.clean(tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["round-00004", "round-00005"]


def test_what_a_killed_process_left_is_removed(tmp_path):
    save(tmp_path, 3)
    draft = tmp_path / ".round-00004"
    draft.mkdir()
    (draft / "tensors-00000.safetensors").write_bytes(b"half")
    assert load(tmp_path) == (3, [])
    checkpoint.clean(tmp_path)
    assert not draft.exists()
    assert load(tmp_path) == (3, [])
