"""Records of clients in a checkpoint: files of about SHARD bytes that later checkpoints share.

    records-00012-00000.safetensors    one tensor, "words": records one after the other (fl/clients/record.py)

A record is written once. A later checkpoint links the files of the one before that still hold records of it;
records in files that are mostly of no use any more are written again. So a checkpoint takes as long as what
has changed, and each is whole without the others.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fl.clients.plain import Wanted
from fl.clients.record import Record, check_masks
from fl.clients.store import Store
from fl.clients.stored import Stored
from fl.clients.tables import Tables
from fl.errors import CheckpointError, RunDirError
from fl.run import files, names, shards
from fl.run.growing import Mark

SHARD = 1 << 28
_WORDS = "words"
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Saved:
    """What the checkpoint of a round has: its files, and by serial number of a record where that lies."""

    round: int = -1
    files: dict[str, Mark] = field(default_factory=dict)
    serials: Ints = field(default_factory=lambda: np.empty(0, np.int64))  # ascending
    places: Ints = field(default_factory=lambda: np.empty((0, 3), np.int64))  # file, first word, words
    written: int = 0  # bytes of files that are new

    def find(self, serials: Ints) -> Ints:
        """The row of each record in `places`; -1: it is not there."""
        if not len(self.serials):
            return np.full(len(serials), -1)
        row = np.minimum(np.searchsorted(self.serials, serials), len(self.serials) - 1)
        return np.where(self.serials[row] == serials, row, -1)

    def tables(self, clients: Stored[Any]) -> Tables:
        """A population whose records are all there."""
        return Tables.of(clients, lambda slots: self.places[self.find(clients.store.serials(slots))])


def save(populations: Sequence[Stored[Any]], folder: Path, draft: Path, t: int) -> Saved:
    """Write the records of these populations of one store into the draft of a checkpoint in `folder`; those
    that the one before has are linked."""
    if not populations:
        return Saved(t)
    store = populations[0].store
    assert all(one.store is store for one in populations), "populations of several stores"
    slots = _slots(populations)
    before: Saved = store.saved or Saved()
    return _save(store, slots, before, folder / names.round_folder(max(0, before.round)), draft, t)


def remember(populations: Sequence[Stored[Any]], saved: Saved) -> None:
    """That checkpoint is there now."""
    for one in populations[:1]:
        one.store.saved = saved


def size(populations: Sequence[Stored[Any]]) -> int:
    """Bytes of all their records."""
    return 8 * int(populations[0].store.lengths(_slots(populations)).sum()) if populations else 0


def nowhere(clients: Stored[Any]) -> Tables:
    """A population before its records are written."""
    return Tables.of(clients, lambda slots: np.zeros((len(slots), 3), np.int64))


def load(
    root: Path, below: str, listed: dict[str, Mark], tables: Sequence[Tables], store: Store, t: int
) -> list[Stored[Any]]:
    """The populations of these tables, read file by file into the store. CheckpointError: a file is damaged,
    or what it holds does not fit."""
    slots = [np.full(len(one.form), -1) for one in tables]
    found, shared = list[int](), dict[tuple[int, int], int]()  # one record may be in several populations
    try:
        for number, (name, mark) in enumerate(listed.items()):
            words = _read(root, f"{below}/{name}", mark)
            for one, mine in zip(tables, slots, strict=True):
                for i in np.flatnonzero(one.place[:, 0] == number).tolist():
                    where = number, int(one.place[i, 1])
                    if where not in shared:
                        found.append(_kept(store, one, i, words, name))
                        if one.place[i, 2]:  # those without tensors take no room
                            shared[where] = found[-1]
                    mine[i] = shared.get(where, found[-1])
        if any((mine < 0).any() for mine in slots):
            raise CheckpointError("expected files of all records of clients, got fewer")
    except BaseException:
        store.discard(found)
        raise
    serials = np.concatenate([np.empty(0, np.int64), *map(store.serials, slots)])
    places = np.concatenate([np.empty((0, 3), np.int64), *(one.place for one in tables)])
    serials, first = np.unique(serials, return_index=True)
    store.saved = Saved(t, dict(listed), serials, places[first])
    return [
        Stored(store, mine[one.record].astype(np.int32), one.version.copy())
        for one, mine in zip(tables, slots, strict=True)
    ]


def _slots(populations: Sequence[Stored[Any]]) -> Ints:
    """Of everybody, each once, in the order of populations and clients: no matter who was ready first."""
    slots = np.concatenate([one.slots for one in populations]).astype(np.int64)
    found, first = np.unique(slots, return_index=True)
    return found[np.argsort(first)]


def _save(store: Store, slots: Ints, before: Saved, old: Path, draft: Path, t: int) -> Saved:
    serials, words = store.serials(slots), store.lengths(slots)
    rows, listed = before.find(serials), [*before.files]
    linked = _of_use(before, rows, words, old)
    if len(before.serials):
        rows[~np.isin(before.places[rows, 0], linked)] = -1
    made = {listed[number]: before.files[listed[number]] for number in linked}
    for name in made:
        _link(old / name, draft / name)
    places, there, written = np.zeros((len(slots), 3), np.int64), rows >= 0, 0
    places[there] = before.places[rows[there]]
    renumbered = np.zeros(len(listed), np.int64)
    renumbered[linked] = np.arange(len(linked))
    places[there, 0] = renumbered[places[there, 0]]
    for i, which in enumerate(_files(np.flatnonzero(~there), words)):
        name, ends = names.records(t, i), np.cumsum(words[which])
        parts = (store.words(int(slots[j])) for j in which)
        made[name] = Mark(**shards.write_joined(draft / name, _WORDS, parts, int(ends[-1])))
        places[which] = np.stack([np.full(len(which), len(made) - 1), ends - words[which], words[which]], 1)
        written += made[name].bytes
    order = np.argsort(serials)
    return Saved(t, made, serials[order], places[order], written)


def _of_use(before: Saved, rows: Ints, words: Ints, old: Path) -> list[int]:
    """The files of the last checkpoint that are there, at least half of which is still of use."""
    there = rows >= 0
    used = np.bincount(before.places[rows[there], 0], words[there], minlength=len(before.files))
    return [
        i
        for i, (name, mark) in enumerate(before.files.items())
        if used[i] and 16 * used[i] >= mark.bytes and files.is_file(old / name)
    ]


def _link(source: Path, target: Path) -> None:
    """The same file under two names; on file systems that have no such thing, a copy."""
    try:
        os.link(source, target)
    except OSError:
        files.copy(source, target)


def _files(which: Ints, words: Ints) -> Iterator[Ints]:
    """Records of about SHARD bytes at a time."""
    if len(which):
        number = (np.cumsum(words[which]) * 8 - 1) // SHARD
        yield from np.split(which, np.flatnonzero(np.diff(number)) + 1)


def _read(root: Path, name: str, mark: Mark) -> Ints:
    try:
        read = shards.read(
            root, name, mark.bytes, mark.sha256, {_WORDS: Wanted(torch.int64, 0, mark.bytes // 8)}
        )
    except RunDirError as wrong:  # a link or a pipe in place of a file
        raise CheckpointError(str(wrong)) from wrong
    if _WORDS not in read:
        raise CheckpointError(f"{Path(name).name}: expected records, got none")
    words: Ints = read[_WORDS].numpy()
    return words


def _kept(store: Store, tables: Tables, i: int, words: Any, name: str) -> int:
    """The slot of record i of `tables`, whose file is `words`."""
    _, first, count = tables.place[i].tolist()
    form, counts = tables.forms[tables.form[i]], tables.counts[i]
    if first + count > len(words):
        raise CheckpointError(f"{name}: expected a record up to word {first + count}, got {len(words)} words")
    mine = words[first : first + count]
    try:
        check_masks(mine, form, counts, store.layout)
    except ValueError as wrong:
        raise CheckpointError(f"{name}: {wrong}") from wrong
    numbers = tables.numbers[i][: len(form.numbers)].tolist()
    need = form.masks * len(store.layout.segments)
    return store.keep(Record(form, numbers, counts[:need].tolist(), [mine], 8 * count))
