"""The directory of a run: every file in it, and writing them so that `kill -9` at any moment loses nothing.

    config.toml       the complete configuration; `sparsefl run DIR/config.toml` repeats the run
    partition.json    {"classes": names, "train": counts [client][class], "test": counts [client][class]}
    code.json         of runs with code of others: where it came from and a hash of it, see fl/run/origins.py
    history.json      where and how the rounds ran, see fl/run/history.py
    metrics.jsonl     one object per round
    clients.jsonl     one object per client and round in which it trained
    checkpoint/       round-00012/ and the one before it (fl/run/checkpoint.py)
    summary.json      written when the last round is done
    report.html       written by fl/report/report.py
    baseline/         a run directory of its own: the same run on dense kernels (`--baseline dense`)
    exact/            the same with exact messages (`--baseline fp32`)
    metrics.csv       metrics.jsonl as a table (`--log csv`)
    tensorboard/      curves (`--log tensorboard`)
    .lock             held while a process writes here, as the directory itself is
    failed.txt        in a comparison: why the run ended

    plan.json, comparison.json, .md, .csv, .tex, report.html, NAME-seed-0/ ...     of a comparison

All names that a run directory may hold are in one table (fl/run/names.py); fl/run/files.py opens them, and
nothing but files that are where they should be. A directory may come from somebody else: no name that is read
from a file in it is opened unless it is in the table.

The keys of metrics.jsonl, clients.jsonl and summary.json are in one table, fl/run/keys.py, from which
docs/reference/metrics.md is made.
"""

import contextlib
import fcntl
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fl.errors import RunDirError
from fl.run import files, leftovers
from fl.run.files import sync_directory, write_atomic
from fl.run.growing import NOTHING, Growing, Mark
from fl.run.names import (
    BASELINE,
    CHECKPOINT,
    CLIENTS,
    CONFIG,
    EXACT,
    GROWING,
    HISTORY,
    LOCK,
    METRICS,
    PARTITION,
    PLAN,
    REPORT,
    SUMMARY,
)

__all__ = [
    "BASELINE",
    "CHECKPOINT",
    "CLIENTS",
    "CONFIG",
    "EXACT",
    "HISTORY",
    "METRICS",
    "PARTITION",
    "PLAN",
    "REPORT",
    "SUMMARY",
    "RunDir",
    "RunDirError",
    "each_jsonl",
    "read_jsonl",
    "sync_directory",
    "write_atomic",
]


class RunDir:
    """Opens, locks and writes the files of one run. Use as a context manager: the lock ends with it."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._locks: list[int] = []
        self._growing = {name: Growing(self.path, name) for name in GROWING}

    @classmethod
    def create(cls, path: Path | str, overwrite: bool = False) -> "RunDir":
        """A new or empty directory for a new run or comparison. `overwrite`: an earlier one is removed."""
        run = cls(path)
        with _explained(run.path, "make the run directory"):
            if run.path.is_dir() and not overwrite:
                run._refuse_leftovers()  # before anything is written there
            run.path.mkdir(parents=True, exist_ok=True)
            sync_directory(run.path.parent)
            run._acquire()
            if overwrite:
                leftovers.remove(run.path)
            else:
                run._refuse_leftovers()
        return run

    @classmethod
    def open(cls, path: Path | str, marker: str = CONFIG) -> "RunDir":
        """The directory of a run that was started before; with `marker=PLAN`, of a comparison."""
        run = cls(path)
        if not files.exists(run.path, marker):
            what = "run" if marker == CONFIG else "comparison"
            raise RunDirError(f"expected the directory of a {what}, got {run.path}, which has no {marker}")
        with _explained(run.path, "open the run directory"):
            run._acquire()
        return run

    def close(self) -> None:
        while self._locks:
            os.close(self._locks.pop())

    def __enter__(self) -> "RunDir":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    def has(self, name: str) -> bool:
        """Whether anything is there under that name."""
        return files.exists(self.path, name)

    def write_text(self, name: str, text: str) -> None:
        """All of it or nothing: a temporary file, then a rename."""
        with _explained(self.path / name, f"write {name}"):
            write_atomic(self.path / name, text.encode())

    def read_text(self, name: str) -> str:
        """Return the text of a configuration, or of any short file."""
        with _explained(self.path / name, f"read {name}"):
            return files.read_text(self.path, name)

    def read_json(self, name: str) -> Any:
        with _explained(self.path / name, f"read {name}"):
            return files.read_json(self.path, name)

    def write_json(self, name: str, value: object) -> None:
        self.write_text(name, json.dumps(value, indent=1, allow_nan=False) + "\n")

    def begin(self) -> None:
        """Everything that grows, empty: the names are on disk before the first round ends."""
        with _explained(self.path, "make the files of the run"):
            for name in GROWING:
                self._growing[name].cut(NOTHING)
            if not files.is_folder(self / CHECKPOINT):
                os.mkdir(self / CHECKPOINT)
            sync_directory(self.path)

    def append(self, name: str, records: Iterable[dict[str, Any]]) -> None:
        """Whole lines, on disk when this returns."""
        text = "".join(json.dumps(record, allow_nan=False) + "\n" for record in records)
        with _explained(self.path / name, f"write {name}"):
            self._growing[name].append(text.encode())

    def marks(self) -> dict[str, Mark]:
        """Return the marks of the files that grow: a checkpoint remembers them."""
        return {name: file.mark for name, file in self._growing.items()}

    def cut(self, marks: Mapping[str, Mark]) -> None:
        """Forget what was written after the checkpoint that remembers `marks`. What came before must be what
        was written."""
        for name, file in self._growing.items():
            with _explained(self.path / name, f"write {name}"):
                file.cut(marks[name])

    def _refuse_leftovers(self) -> None:
        if self.has(CONFIG) or self.has(PLAN):
            raise RunDirError(
                f"expected a directory without a run or comparison, got {self.path}, which holds one: "
                f"continue it with --resume {self.path}, name another with --out, or remove it and start "
                "anew with --overwrite"
            )
        found = leftovers.found(self.path)
        if found:
            told = ", ".join(found[:6]) + (f" and {len(found) - 6} more" if len(found) > 6 else "")
            raise RunDirError(
                f"expected an empty directory, got {self.path} with {told}: name another with --out; "
                "--overwrite removes what a run left there, and nothing else"
            )

    def _acquire(self) -> None:
        """On the directory itself, so that no deleted file ends it; and on a file in it, since some file
        systems of several machines (NFS) lock directories on one machine only."""
        try:
            self._lock(files.open_folder(self.path))
            self._lock(files.open_file(self.path, LOCK, os.O_RDWR | os.O_CREAT))
        except BlockingIOError as busy:
            self.close()
            raise RunDirError(
                f"expected a directory nobody writes to, got {self.path}, in use by another run"
            ) from busy
        except BaseException:
            self.close()
            raise

    def _lock(self, handle: int) -> None:
        self._locks.append(handle)
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def read_jsonl(path: Path | str) -> list[dict[str, Any]]:
    """The objects of a .jsonl file; a last line that was cut off is left out."""
    return list(each_jsonl(path))


def each_jsonl(path: Path | str) -> Iterator[dict[str, Any]]:
    """Yield the lines one by one, for files that are larger than memory."""
    return files.each_line(Path(path).parent, Path(path).name)


@contextlib.contextmanager
def _explained(path: Path, what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunDirError(f"cannot {what} ({path}): {error.strerror or error}") from error
