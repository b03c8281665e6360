"""Checkpoints: a run's state after a round, complete or not there at all.

    checkpoint/round-00012/
        tensors-00000.safetensors ...    models and masks, about SHARD bytes per file (fl/run/shards.py)
        records-00012-00000.safetensors  records of clients (fl/run/records.py)
        state.json                       {"sha256": of the body, "body": {
                                             "format": 4, "round": 12, "config": TOML,
                                             "marks": {file that grows: {"bytes", "sha256"}} of its beginning,
                                             "history": where it ran (fl/run/history.py),
                                             "state": plain values (fl/clients/plain.py),
                                             "files": {name: {"bytes", "sha256"}}}}

A checkpoint is written beside the others under a name that starts with a dot, brought to disk, and renamed;
it is removed under such a name as well. The one before it is kept, and used when the newest turns out to be
damaged. No pickle anywhere. Checksums find damage, not malice: everything that is read is checked before it
is used.
"""

import contextlib
import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from torch import Tensor

from fl.clients import plain as store
from fl.clients.store import Store
from fl.clients.stored import Stored
from fl.clients.tables import Tables
from fl.errors import CheckpointError, RunDirError, StoreError
from fl.run import files, history, names, records, shards
from fl.run.files import shown, sync_directory
from fl.run.growing import Mark
from fl.run.history import History
from fl.run.leftovers import remove_folder

FORMAT = 4
SHARD = 1 << 28
_KEYS = ("format", "round", "config", "marks", "history", "state", "files")
_HEX = frozenset("0123456789abcdef")
Used = TypeVar("Used")


class Head(NamedTuple):
    """What state.json says of a round, checked; the tensors are not read yet."""

    round: int
    config: str
    marks: dict[str, Mark]
    history: History
    state: store.Plain
    files: dict[str, Mark]


def save_checkpoint(
    folder: Path, t: int, config: str, marks: dict[str, Mark], parts: History, state: Any
) -> int:
    """Write the state after round t, and return how many bytes that took. All others but the one before it
    are removed."""
    target, draft = folder / names.round_folder(t), folder / names.draft_folder(t)
    try:
        if not files.is_folder(folder):
            os.mkdir(folder)
            sync_directory(folder.parent)
        remove_folder(draft)
        os.mkdir(draft)
        kept = records.save(store.populations(state), folder, draft, t)
        plain, tensors = store.take_apart(state, kept.tables)
        written = {name: shards.write(draft / name, part) for name, part in _shards(tensors)}
        size = kept.written + sum(one["bytes"] for one in written.values())
        written |= {name: mark._asdict() for name, mark in kept.files.items()}
        body = {
            "format": FORMAT,
            "round": t,
            "config": config,
            "marks": {name: mark._asdict() for name, mark in marks.items()},
            "history": history.to_json(parts),
            "state": plain,
            "files": written,
        }
        _write(draft / names.STATE, json.dumps({"sha256": _digest(body), "body": body}).encode())
        sync_directory(draft)
        _remove(folder, t)  # a damaged one of the same round
        os.rename(draft, target)
        sync_directory(folder)
    except (OSError, MemoryError) as error:
        with contextlib.suppress(OSError):
            remove_folder(draft)
        raise CheckpointError(_unwritten(folder, t, state, error)) from error
    records.remember(store.populations(state), kept)
    try:
        prune(folder, t)
    except OSError as error:
        raise CheckpointError(f"cannot remove old checkpoints in {folder}: {error.strerror}") from error
    return size


def newest(folder: Path, use: Callable[[Head], Used]) -> tuple[Used, list[str]]:
    """What `use` makes of the newest whole checkpoint, and what is wrong with newer ones, a line each.

    One that `use` refuses with a CheckpointError or StoreError is not whole.
    """
    problems: list[str] = []
    for t in rounds(folder):
        try:
            return use(_head(folder, t)), problems
        except (CheckpointError, StoreError, OSError) as wrong:
            problems.append(f"{folder / names.round_folder(t)}: {wrong}")
    if problems:
        raise CheckpointError("expected a whole checkpoint, got\n" + "\n".join(problems))
    raise CheckpointError(f"expected a checkpoint in {folder}, got none: no round was finished")


def records_of(folder: Path, head: Head, tables: Sequence[Tables], kept: Store) -> list[Stored[Any]]:
    """The populations of these tables of a checkpoint, read into a store."""
    below = f"{folder.name}/{names.round_folder(head.round)}"
    listed = {name: mark for name, mark in head.files.items() if names.is_records(name)}
    return records.load(folder.parent, below, listed, tables, kept, head.round)


def tensors_of(folder: Path, head: Head, wanted: dict[str, store.Wanted]) -> dict[str, Tensor]:
    """The tensors of a checkpoint, which must be as `wanted` has them."""
    below = f"{folder.name}/{names.round_folder(head.round)}"
    tensors: dict[str, Tensor] = {}
    for name, mark in head.files.items():
        if names.is_records(name):
            continue
        left = {key: value for key, value in wanted.items() if key not in tensors}
        try:
            tensors |= shards.read(folder.parent, f"{below}/{name}", mark.bytes, mark.sha256, left)
        except RunDirError as wrong:  # a link or a pipe in place of a file
            raise CheckpointError(str(wrong)) from wrong
    return tensors


def rounds(folder: Path) -> list[int]:
    """Rounds that have a checkpoint, newest first."""
    if not files.is_folder(folder):
        return []
    found = (names.round_of(name) for name in os.listdir(folder))
    return sorted((t for t in found if t is not None), reverse=True)


def clean(folder: Path) -> None:
    """Remove what a process that was killed left: half-written checkpoints and half-removed ones."""
    if files.is_folder(folder):
        for name in filter(names.is_abandoned, os.listdir(folder)):
            remove_folder(folder / name)


def prune(folder: Path, t: int) -> None:
    """Remove all but the whole checkpoint of round t and the one before it. Later ones are damaged."""
    before = next((old for old in rounds(folder) if old < t), None)
    for other in rounds(folder):
        if other not in (t, before):
            _remove(folder, other)


def _remove(folder: Path, t: int) -> None:
    """Under another name first, so that a process that is killed leaves nothing that looks whole."""
    path, aside = folder / names.round_folder(t), folder / names.removed_folder(t)
    if os.path.lexists(path):
        remove_folder(aside)
        os.rename(path, aside)
        remove_folder(aside)


def _head(folder: Path, t: int) -> Head:
    try:
        body = _body(folder, t)
        parts = history.from_json(body["history"])
    except RunDirError as wrong:
        raise CheckpointError(str(wrong)) from wrong
    if not isinstance(body["config"], str):
        raise CheckpointError(f"config: expected text, got {shown(body['config'])}")
    if not parts:
        raise CheckpointError("history: expected at least one part, got none")
    marks, listed = (_marks(body[key], key) for key in ("marks", "files"))
    if set(marks) != set(names.GROWING):
        raise CheckpointError(f"marks: expected those of {list(names.GROWING)}, got {shown(list(marks))}")
    tensors = [name for name in listed if not names.is_records(name)]
    if tensors != [names.shard(i) for i in range(len(tensors))]:
        raise CheckpointError(f"files: expected {names.shard(0)} and so on, got {str([*listed])[:120]}")
    return Head(t, body["config"], marks, parts, body["state"], listed)


def _body(folder: Path, t: int) -> dict[str, Any]:
    """Return the body of state.json, with its checksum, keys, format and round checked."""
    whole = files.read_json(folder.parent, f"{folder.name}/{names.round_folder(t)}/{names.STATE}")
    match whole:
        case {"sha256": str(wanted), "body": dict(body)}:
            pass
        case _:
            raise CheckpointError(f"{names.STATE}: expected JSON with a checksum, got {shown(whole)}")
    if wanted != _digest(body):
        raise CheckpointError(f"{names.STATE}: expected another checksum: it was changed or damaged")
    if body.get("format") != FORMAT or body.get("round") != t:
        got = f"format {shown(body.get('format'))} of round {shown(body.get('round'))}"
        older = body.get("format") in range(1, FORMAT)
        other = "; finish it with the version of sparsefl that wrote it" if older else ""
        raise CheckpointError(f"expected format {FORMAT} of round {t}, got {got}{other}")
    if set(body) != set(_KEYS):
        raise CheckpointError(f"{names.STATE}: expected the keys {list(_KEYS)}, got {str([*body])[:200]}")
    return body


def _marks(told: Any, where: str) -> dict[str, Mark]:
    """{name: {"bytes", "sha256"}} as marks."""
    if not isinstance(told, dict):
        raise CheckpointError(f"{where}: expected names, got {shown(told)}")
    return {name: _mark(one, f"{where}: {shown(name)}") for name, one in told.items()}


def _mark(told: Any, where: str) -> Mark:
    match told:
        case {"bytes": int(size), "sha256": str(sha256)} if len(told) == 2 and type(size) is int:
            if 0 <= size < 1 << 62 and len(sha256) == 64 and _HEX.issuperset(sha256):
                return Mark(size, sha256)
    raise CheckpointError(f"{where}: expected bytes and a checksum, got {str(told)[:120]}")


def _shards(tensors: dict[str, Tensor]) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """The name and the tensors of each file."""
    shard: dict[str, Tensor] = {}
    count, size = 0, 0
    for name, tensor in tensors.items():
        if size > SHARD:
            yield names.shard(count), shard
            shard, count, size = {}, count + 1, 0
        shard[name], size = tensor, size + tensor.nbytes
    yield names.shard(count), shard


def _write(path: Path, data: bytes) -> None:
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _unwritten(folder: Path, t: int, state: Any, error: OSError | MemoryError) -> str:
    if isinstance(error, MemoryError):
        why = "out of memory"
    else:
        why = error.strerror or str(error)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            why += (
                f" (about {_needed(state) / 1e6:,.1f} MB are needed, {_free(folder) / 1e6:,.1f} MB are free)"
            )
    whole = rounds(folder)
    kept = f"the checkpoint of round {whole[0]} is untouched" if whole else "there is no earlier one"
    return f"cannot write the checkpoint of round {t} to {folder}: {why}; {kept}"


def _needed(state: Any) -> int:
    """Bytes of all tensors and records."""
    _, tensors = store.take_apart(state, records.nowhere)
    return records.size(store.populations(state)) + sum(x.nbytes for x in tensors.values())


def _free(folder: Path) -> int:
    there = next(path for path in (folder, *folder.parents) if path.exists())
    return shutil.disk_usage(there).free


def _digest(body: dict[str, Any]) -> str:
    try:
        return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    except (RecursionError, UnicodeEncodeError) as wrong:
        raise CheckpointError(f"{names.STATE}: expected plain values, got {wrong}") from None
