"""What an earlier run left in a directory, and removing exactly that: nothing whose name is not in the table
(fl/run/names.py) is ever removed, and no link is followed.
"""

import os
import shutil
import stat
from pathlib import Path

from fl.run import names

_RUNS = (names.BASELINE, names.EXACT)


def found(path: Path) -> list[str]:
    """Everything in the directory but what starting a run makes at once: nothing, of an empty directory."""
    ours = (names.LOCK, f".{names.CONFIG}.new", f".{names.PLAN}.new")
    return sorted(name for name in os.listdir(path) if name not in ours)


def remove(path: Path) -> None:
    """The files of a run or a comparison, and the folders that are empty then."""
    for entry in [*os.scandir(path)]:
        below = Path(entry.path)
        if entry.is_symlink():
            if _is_known(entry.name):
                below.unlink()
        elif not entry.is_dir():
            if entry.name in names.FILES + names.DRAFTS and entry.name != names.LOCK:
                below.unlink()
        elif entry.name in _RUNS or names.is_run_folder(entry.name):
            remove(below)
            (below / names.LOCK).unlink(missing_ok=True)
            _remove_empty(below)
        elif entry.name == names.CHECKPOINT:
            _remove_checkpoints(below)
        elif entry.name == names.TENSORBOARD:
            for events in [*os.scandir(below)]:
                if names.is_events_file(events.name) and events.is_file(follow_symlinks=False):
                    os.unlink(events.path)
            _remove_empty(below)


def remove_folder(path: Path) -> None:
    """A folder with all that is in it; of a link, the link. Others go unopened: a pipe would wait."""
    if not os.path.lexists(path):
        return
    if stat.S_ISDIR(path.lstat().st_mode):
        shutil.rmtree(path)
    else:
        path.unlink()


def _remove_checkpoints(folder: Path) -> None:
    for entry in [*os.scandir(folder)]:
        below = Path(entry.path)
        if names.round_of(entry.name) is None and not names.is_abandoned(entry.name):
            continue
        if entry.is_symlink():
            below.unlink()
        elif entry.is_dir():
            for file in [*os.scandir(below)]:
                if file.name == names.STATE or names.is_shard(file.name) or names.is_records(file.name):
                    os.unlink(file.path)
            _remove_empty(below)
    _remove_empty(folder)


def _remove_empty(folder: Path) -> None:
    if not os.listdir(folder):
        folder.rmdir()


def _is_known(name: str) -> bool:
    folders = (*_RUNS, names.CHECKPOINT, names.TENSORBOARD)
    return name in names.FILES + names.DRAFTS + folders or names.is_run_folder(name)
