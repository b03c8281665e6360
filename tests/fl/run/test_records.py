"""Records in checkpoints: what has not changed is linked, what has is written, and damage is found."""

import itertools
import json
import os
import signal
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from messages import LAYOUT, same, state_of

import sparse_engine as se
from fl.clients import plain
from fl.clients.base import Clients
from fl.clients.store import Store
from fl.clients.tables import NAMES, Tables
from fl.errors import CheckpointError, StoreError
from fl.run import checkpoint, history, names, records
from fl.run.growing import NOTHING

MARKS = dict.fromkeys(names.GROWING, NOTHING)
PARTS = (history.now(0, 1, "program", {}),)


@dataclass(frozen=True)
class Thing:
    model: se.Model
    mask: se.Bitmap
    drift: float | None = None
    name: str = "x"


@dataclass(frozen=True)
class State:
    things: Clients[Thing]
    t: int = 0


def thing(shift=0, drift=None):
    return Thing(state_of(shift), state_of(1 - shift).bitmap, drift)


def save(folder, t, things):
    return checkpoint.save_checkpoint(folder, t, "text", MARKS, PARTS, State(things, t))


def load(folder, store):
    """As fl/run/restore.py does it."""
    types = {"Thing": Thing, "State": State}

    def read(head):
        tensors = checkpoint.tensors_of(folder, head, plain.wanted(head.state, LAYOUT))
        told = plain.in_tables(head.state)
        tables = [
            Tables.read(one, {part: tensors[f"{name}/{part}"] for part in NAMES}, types, LAYOUT, store.half)
            for name, one in told.items()
        ]
        stored = dict(zip(told, checkpoint.records_of(folder, head, tables, store), strict=True))
        return plain.put_together(head.state, tensors, types, LAYOUT, store, stored)

    return checkpoint.newest(folder, read)


def alike(ours, theirs):
    for a, b in zip(ours, theirs, strict=True):
        assert same(a.model, b.model) and torch.equal(a.mask.words, b.mask.words)
        assert (a.drift, a.name) == (b.drift, b.name)
    return True


def shards(folder, t):
    return sorted((folder / names.round_folder(t)).glob("records-*"))


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(records, "SHARD", 2000)  # a few clients per file


@pytest.mark.parametrize("half", [False, True])
def test_a_population_comes_back(tmp_path, half, few):
    store = Store(LAYOUT, half=half)
    things = store([thing(), thing(1, 0.5)] * 20 + [thing()]).with_({3: thing(0, -0.0)})
    save(tmp_path, 2, things)
    state, problems = load(tmp_path, Store(LAYOUT, half=half))
    assert not problems and state.t == 2 and alike(state.things, things) and len(shards(tmp_path, 2)) > 3
    assert [state.things.ref(k).version for k in range(41)] == [int(k == 3) for k in range(41)]


@pytest.mark.parametrize("resumed", [False, True])
def test_only_what_changed_is_written(tmp_path, few, resumed):
    store = Store(LAYOUT)
    things = store(thing(k % 2, float(k)) for k in range(60))
    whole = save(tmp_path, 0, things)
    if resumed:
        store = Store(LAYOUT)
        things = load(tmp_path, store)[0].things
    things = things.with_({7: thing(1, -1.0)})
    part = save(tmp_path, 1, things)
    new = [path for path in shards(tmp_path, 1) if path.name.startswith("records-00001")]
    assert len(new) == 1 and part < whole / 2
    linked = set(shards(tmp_path, 1)) - set(new)
    assert linked and all(
        os.path.samefile(path, shards(tmp_path, 0)[0].parent / path.name) for path in linked
    )
    things = things.with_({8: thing(0, -2.0)})
    save(tmp_path, 2, things)
    save(tmp_path, 3, things)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["round-00002", "round-00003"]
    assert alike(load(tmp_path, Store(LAYOUT))[0].things, things)


def test_files_that_are_mostly_of_no_use_are_written_again(tmp_path):
    """One file of 40; after 30 have changed it is not linked."""
    things = Store(LAYOUT)(thing(k % 2, float(k)) for k in range(40))
    save(tmp_path, 0, things)
    things = things.with_({k: thing(0, 1.5) for k in range(15)})
    save(tmp_path, 1, things)
    assert [path.name[:13] for path in shards(tmp_path, 1)] == ["records-00000", "records-00001"]
    things = things.with_({k: thing(0, 2.5) for k in range(15, 30)})
    save(tmp_path, 2, things)
    assert [path.name[:13] for path in shards(tmp_path, 2)] == ["records-00001", "records-00002"]
    assert alike(load(tmp_path, Store(LAYOUT))[0].things, things)


def test_a_file_that_vanished_is_written_again(tmp_path, few):
    things = Store(LAYOUT)(thing(k % 2, float(k)) for k in range(20))
    save(tmp_path, 0, things)
    shards(tmp_path, 0)[0].unlink()
    save(tmp_path, 1, things)
    assert alike(load(tmp_path, Store(LAYOUT))[0].things, things)


def test_without_hard_links_files_are_copied(tmp_path, few, monkeypatch):
    def refused(*_, **__):
        raise PermissionError(1, "Operation not permitted")

    things = Store(LAYOUT)(thing(k % 2, float(k)) for k in range(20))
    save(tmp_path, 0, things)
    monkeypatch.setattr("os.link", refused)
    save(tmp_path, 1, things)
    assert not os.path.samefile(shards(tmp_path, 0)[0], shards(tmp_path, 1)[0])
    assert alike(load(tmp_path, Store(LAYOUT))[0].things, things)


@pytest.mark.parametrize("damage", ["cut", "flip", "gone"])
def test_a_damaged_file_is_found_and_the_one_before_is_used(tmp_path, few, damage):
    old = Store(LAYOUT)(thing(k % 2, float(k)) for k in range(20))
    save(tmp_path, 3, old)
    save(tmp_path, 4, old.with_({k: thing(0, 9.5) for k in range(20)}))
    path = shards(tmp_path, 4)[1]
    data = bytearray(path.read_bytes())
    data[-9] ^= 4
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(data if damage == "flip" else data[:-8])
    store = Store(LAYOUT)
    state, (problem,) = load(tmp_path, store)
    assert state.t == 3 and alike(state.things, old) and path.name in problem
    assert "round-00004" in problem
    kept = store.nbytes
    del state
    store.tidy()
    assert store.nbytes == 0 < kept  # nothing of the damaged one stayed


def test_a_full_disk_keeps_the_one_before(tmp_path, few, monkeypatch):
    things = Store(LAYOUT)(thing(k % 2, float(k)) for k in range(20))
    save(tmp_path, 3, things)
    changed = things.with_({0: thing(1, 3.0)})

    def full(part):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.shards, "_words", full)
        with pytest.raises(
            CheckpointError, match=r"round 4 .*No space .* MB are free\); .* round 3 is untouched"
        ):
            save(tmp_path, 4, changed)
    assert [path.name for path in tmp_path.iterdir()] == ["round-00003"]
    assert alike(load(tmp_path, Store(LAYOUT))[0].things, things)
    save(tmp_path, 4, changed)  # there is room again
    assert alike(load(tmp_path, Store(LAYOUT))[0].things, changed)


def tables_of(things):
    """With places in one file."""

    def placed(slots):
        words = things.store.lengths(slots)
        return np.stack([np.zeros_like(words), np.cumsum(words) - words, words], axis=1)

    return Tables.of(things, placed)


BAD = {
    "version": (0, -1),
    "record": (0, 99),
    "form": (0, 7),
    "counts": (0, 1 << 40),
    "place": (2, 3),
}


@pytest.mark.parametrize("name", BAD)
def test_tables_that_cannot_be_are_refused(name):
    things = Store(LAYOUT)([thing(), thing(1, 0.5)])
    tables = tables_of(things)
    tensors = {part: tensor.clone() for part, tensor in tables.tensors.items()}
    types = {"Thing": Thing}
    assert Tables.read(tables.plain, tensors, types, LAYOUT, False).forms == tables.forms
    at, wrong = BAD[name]
    tensors[name][at] = wrong
    with pytest.raises(StoreError, match="expected"):
        Tables.read(tables.plain, tensors, types, LAYOUT, False)


@pytest.mark.parametrize(
    "change",
    [
        {"masks": -1},
        {"models": [5]},
        {"numbers": "q"},
        {"tree": {"type": "Other", "parts": []}},
        {"tree": {"type": "Thing", "parts": [None]}},
        {"tree": {"model": 9}},
        {"tree": {"number": True}},
    ],
)
def test_forms_that_cannot_be_are_refused(change):
    tables = tables_of(Store(LAYOUT)([thing()]))
    told = json.loads(json.dumps(tables.plain))
    told["forms"][0] |= change
    with pytest.raises(StoreError, match="expected"):
        Tables.read(told, tables.tensors, {"Thing": Thing}, LAYOUT, False)


def test_masks_are_compared_with_their_counts(tmp_path):
    """A checkpoint of somebody else's, with checksums that fit."""
    store = Store(LAYOUT)
    save(tmp_path, 0, store([thing()]))

    def other(words, form, counts, layout):
        raise ValueError("expected masks that store [3], got (4,)")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "check_masks", other)
        with pytest.raises(CheckpointError, match="expected masks that store"):
            load(tmp_path, Store(LAYOUT))


STEPS = ("fsync", "rename", "mkdir", "link", "unlink", "rmdir", "open")


def killed_at(step, work):
    """Whether `work`, in a process of its own, was killed before this call out of STEPS."""
    process = os.fork()
    if process:
        _, status = os.waitpid(process, 0)
        assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
        return os.WIFSIGNALED(status)
    calls = itertools.count()

    def counted(real):
        def call(*given, **options):
            if next(calls) == step:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*given, **options)

        return call

    try:
        for name in STEPS:
            setattr(os, name, counted(getattr(os, name)))
        work()
        os._exit(0)
    finally:
        os._exit(1)


def test_a_kill_at_any_step_leaves_a_whole_checkpoint(tmp_path, few):
    """Three saves of which two link; each was the last that ended, or the one before it."""
    first = Store(LAYOUT)(thing(k % 2, float(k)) for k in range(12))
    rounds = [first, first.with_({1: thing(0, 0.5)}), first.with_({2: thing(1, 0.5)})]
    seen = set()
    for step in itertools.count():
        folder = tmp_path / str(step)
        if not killed_at(step, lambda at=folder: [save(at, t, one) for t, one in enumerate(rounds)]):
            break
        if not folder.exists() or not checkpoint.rounds(folder):
            continue
        checkpoint.clean(folder)
        store = Store(LAYOUT)
        state, problems = load(folder, store)
        assert not problems and alike(state.things, rounds[state.t])
        seen.add(state.t)
        save(folder, state.t + 1, state.things)  # the run goes on
        assert alike(load(folder, Store(LAYOUT))[0].things, rounds[state.t])
    assert seen == {0, 1, 2} and step > 30
