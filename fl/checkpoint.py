"""Checkpoints: a run's state after a round, complete or not there at all.

    checkpoint/round-00012/
        tensors-00000.safetensors ...    models and masks, about SHARD bytes a file
        state.json                       {"sha256": of the body, "body": {
                                             "format": 1, "round": 12, "config": TOML,
                                             "sizes": bytes of the files that grow,
                                             "state": plain values (fl/store.py),
                                             "files": {name: {"bytes", "sha256"}}}}

A checkpoint is written beside the others under a name that starts with a dot, brought to disk, and renamed.
The one before it is kept, and used when the newest turns out to be damaged. No pickle anywhere.
"""

import contextlib
import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.numpy import save  # torch's refuses tensors that share memory
from safetensors.torch import load_file
from torch import Tensor

from fl import store
from fl.errors import CheckpointError
from fl.rundir import sync_directory

FORMAT = 1
KEPT = 2
SHARD = 1 << 28


@dataclass(frozen=True)
class Checkpoint:
    """One that was read and found whole."""

    round: int
    config: str
    sizes: dict[str, int]
    state: store.Plain
    tensors: dict[str, Tensor]


def save_checkpoint(folder: Path, t: int, config: str, sizes: dict[str, int], state: Any) -> Path:
    """Write the state after round t; older checkpoints but the last are removed."""
    plain, tensors = store.take_apart(state)
    target, draft = folder / _name(t), folder / f".{_name(t)}"
    try:
        folder.mkdir(exist_ok=True)
        _remove(draft)
        draft.mkdir()
        files = {name: _write(draft / name, data) for name, data in _shards(tensors)}
        body = {
            "format": FORMAT,
            "round": t,
            "config": config,
            "sizes": sizes,
            "state": plain,
            "files": files,
        }
        _write(draft / "state.json", json.dumps({"sha256": _digest(_text(body)), "body": body}).encode())
        sync_directory(draft)
        _remove(target)  # a damaged one of the same round
        os.rename(draft, target)
        sync_directory(folder)
    except OSError as error:
        with contextlib.suppress(OSError):
            _remove(draft)
        raise CheckpointError(_unwritten(folder, t, tensors, error)) from error
    for old in _rounds(folder)[KEPT:]:
        _remove(folder / _name(old))
    return target


def load_checkpoint(folder: Path) -> tuple[Checkpoint, list[str]]:
    """The newest whole checkpoint, and what is wrong with newer ones, a line each."""
    problems: list[str] = []
    for t in _rounds(folder):
        try:
            return _read(folder / _name(t), t), problems
        except (CheckpointError, OSError) as wrong:
            problems.append(f"{folder / _name(t)}: {wrong}")
    if problems:
        raise CheckpointError("expected a whole checkpoint, got\n" + "\n".join(problems))
    raise CheckpointError(f"expected a checkpoint in {folder}, got none: no round was finished")


def clean(folder: Path) -> None:
    """Remove what a process that was killed left unfinished."""
    for draft in folder.glob(".round-*"):
        _remove(draft)


def _read(path: Path, t: int) -> Checkpoint:
    body = _body(path / "state.json")
    if body["format"] != FORMAT or body["round"] != t:
        got = f"format {body['format']} of round {body['round']}"
        raise CheckpointError(f"expected format {FORMAT} of round {t}, got {got}")
    tensors: dict[str, Tensor] = {}
    for name, wanted in body["files"].items():
        _check(path / name, wanted)
        try:
            tensors |= load_file(path / name)
        except SafetensorError as wrong:
            raise CheckpointError(f"{name}: {wrong}") from wrong
    return Checkpoint(t, body["config"], body["sizes"], body["state"], tensors)


def _body(path: Path) -> dict[str, Any]:
    try:
        whole = json.loads(path.read_bytes())
        body = whole["body"]
        if whole["sha256"] == _digest(_text(body)):
            return body
    except (ValueError, KeyError, TypeError) as wrong:
        raise CheckpointError(f"{path.name}: expected JSON with a checksum, got {wrong}") from wrong
    raise CheckpointError(f"{path.name}: expected another checksum: it was changed or damaged")


def _check(path: Path, wanted: dict[str, Any]) -> None:
    size = path.stat().st_size
    if size != wanted["bytes"]:
        raise CheckpointError(f"{path.name}: expected {wanted['bytes']} bytes, got {size}")
    with open(path, "rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != wanted["sha256"]:
        raise CheckpointError(f"{path.name}: expected another checksum: it was changed or damaged")


def _shards(tensors: dict[str, Tensor]) -> Iterator[tuple[str, bytes]]:
    shard: dict[str, Any] = {}
    count, size = 0, 0
    for name, tensor in tensors.items():
        if size > SHARD:
            yield f"tensors-{count:05}.safetensors", save(shard)
            shard, count, size = {}, count + 1, 0
        shard[name], size = tensor.numpy(), size + tensor.nbytes
    yield f"tensors-{count:05}.safetensors", save(shard)


def _write(path: Path, data: bytes) -> dict[str, Any]:
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return {"bytes": len(data), "sha256": _digest(data)}


def _unwritten(folder: Path, t: int, tensors: dict[str, Tensor], error: OSError) -> str:
    why = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        needed = sum(x.nbytes for x in tensors.values())
        why += f" (about {needed / 1e6:,.1f} MB are needed, {_free(folder) / 1e6:,.1f} MB are free)"
    whole = _rounds(folder)
    kept = f"the checkpoint of round {whole[0]} is untouched" if whole else "there is no earlier one"
    return f"cannot write the checkpoint of round {t} to {folder}: {why}; {kept}"


def _free(folder: Path) -> int:
    there = next(path for path in (folder, *folder.parents) if path.exists())
    return shutil.disk_usage(there).free


def _rounds(folder: Path) -> list[int]:
    """Rounds that have a checkpoint, newest first."""
    return sorted(
        (int(path.name[6:]) for path in folder.glob("round-*") if path.name[6:].isdigit()), reverse=True
    )


def _name(t: int) -> str:
    return f"round-{t:05}"


def _text(body: dict[str, Any]) -> bytes:
    return json.dumps(body, sort_keys=True).encode()


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _remove(path: Path) -> None:
    if path.exists():
        shutil.rmtree(path)
