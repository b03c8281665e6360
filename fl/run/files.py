"""Files of a directory that somebody else may have made: opened only where they are what they should be.

Every read and write of a run directory (fl/run/rundir.py) goes through here. The directory itself may be a
link; below it a link, pipe or device is refused, and never followed, waited for or emptied. JSON is read
without NaN and infinity, without numbers that no float holds, and without a nesting that a program could not
walk."""

import contextlib
import json
import math
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from fl.errors import RunDirError

TEXT = 1 << 20  # bytes of a configuration, at most
DOCUMENT = 1 << 28  # of a file that holds one JSON value
LINE = 1 << 26  # of a line of JSON
DIGITS = 30  # of an integer

_SAFE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def open_folder(root: Path, name: str = ".") -> int:
    """A handle of the folder `name` ("checkpoint/round-00012") below `root`, which no link leads to."""
    handle = os.open(root, _DIRECTORY)
    for part in _parts(name):
        try:
            below = os.open(part, _DIRECTORY | os.O_NOFOLLOW, dir_fd=handle)
        except NotADirectoryError:  # what Linux says of a link, too
            raise RunDirError(f"expected a folder, got {_kind(part, handle)}: {root / name}") from None
        finally:
            os.close(handle)
        handle = below
    return handle


def open_file(root: Path, name: str, flags: int = os.O_RDONLY) -> int:
    """A handle of the regular file `name` below `root`. OSError: it is not there, or may not be opened."""
    *folders, last = _parts(name)
    folder = open_folder(root, "/".join(folders) or ".")
    try:
        found = _kind(last, folder)
        if found not in (None, "a file"):
            raise RunDirError(f"expected a file, got {found}: {root / name}")
        handle = os.open(last, flags | _SAFE, 0o666, dir_fd=folder)
    finally:
        os.close(folder)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise RunDirError(f"expected a file, got something else: {root / name}")
    return handle


def reader(root: Path, name: str) -> BinaryIO:
    """The file `name` below `root`, to read; RunDirError: it is none. FileNotFoundError: it is not there."""
    return os.fdopen(open_file(root, name), "rb")


def exists(root: Path, name: str) -> bool:
    """Whether there is anything under that name, of whatever kind."""
    return os.path.lexists(root / name)


def is_folder(path: Path) -> bool:
    """False: nothing is there. RunDirError: something else is, or a link."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return False
    if not stat.S_ISDIR(mode):
        raise RunDirError(f"expected a folder, got {_what(mode)}: {path}")
    return True


def read_text(root: Path, name: str, most: int = TEXT) -> str:
    """All of a short file; RunDirError where it is too long or no text."""
    with reader(root, name) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise RunDirError(f"expected at most {most:,} bytes in {root / name}, got more")
    try:
        return data.decode()
    except UnicodeDecodeError as wrong:
        raise RunDirError(f"expected text in {root / name}, got {wrong}") from wrong


def read_json(root: Path, name: str) -> Any:
    """The value in a file."""
    text = read_text(root, name, DOCUMENT)
    try:
        return loads(text)
    except ValueError as wrong:
        raise RunDirError(f"expected JSON in {root / name}, got {wrong}") from wrong


def each_line(root: Path, name: str) -> Iterator[dict[str, Any]]:
    """The objects of a .jsonl file one by one; a last line that was cut off is left out."""
    with reader(root, name) as file:
        number = 0
        while line := file.readline(LINE):
            number += 1
            if not line.endswith(b"\n"):
                if len(line) == LINE:
                    raise RunDirError(f"{root / name}, line {number}: expected at most {LINE:,} bytes")
                return
            if line != b"\n":
                yield _object(line, f"{root / name}, line {number}")


def _object(line: bytes, where: str) -> dict[str, Any]:
    try:
        value = loads(line.decode())
    except ValueError as wrong:
        raise RunDirError(f"{where}: expected JSON, got {wrong}") from wrong
    if not isinstance(value, dict):
        raise RunDirError(f"{where}: expected an object of JSON, got {shown(value)}")
    return value


def loads(text: str) -> Any:
    """The JSON value of `text`, or a ValueError."""
    try:
        return json.loads(text, parse_constant=_refused, parse_float=_finite, parse_int=_whole)
    except RecursionError:
        raise ValueError("values nested too deeply") from None


def shown(value: object) -> str:
    """A value in a message: short, whatever it is."""
    text = repr(value) if not isinstance(value, dict | list) else f"{type(value).__name__} of {len(value)}"
    return text if len(text) <= 80 else text[:77] + "..."


def write_atomic(path: Path, data: bytes) -> None:
    """`path` holds the old bytes or the new ones, never a part, whenever the machine stops."""
    temporary = path.with_name(f".{path.name}.new")
    try:
        temporary.unlink(missing_ok=True)  # or a link of that name would be followed
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _SAFE, 0o666), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def copy(source: Path, target: Path) -> None:
    """A new file with the same bytes, on disk when this returns."""
    with open(source, "rb") as old, open(target, "xb") as new:
        shutil.copyfileobj(old, new, 1 << 24)
        new.flush()
        os.fsync(new.fileno())


def is_file(path: Path) -> bool:
    """Whether a regular file is there, and no link to one."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def sync_directory(path: Path) -> None:
    """A rename, or a new name, is on disk once its directory is."""
    handle = os.open(path, _DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _parts(name: str) -> list[str]:
    parts = [part for part in name.split("/") if part != "."]
    assert name and "" not in parts and ".." not in parts, name  # names are ours: rundir.py has the table
    return parts


def _kind(name: str, folder: int) -> str | None:
    try:
        return _what(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return None


def _what(mode: int) -> str:
    kinds = {
        stat.S_IFREG: "a file",
        stat.S_IFDIR: "a folder",
        stat.S_IFLNK: "a link",
        stat.S_IFIFO: "a pipe",
        stat.S_IFSOCK: "a socket",
    }
    return kinds.get(stat.S_IFMT(mode), "a device")


def _refused(text: str) -> float:
    raise ValueError(f"{text}, which is no number of JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"a number that is too large: {text[:40]}")
    return value


def _whole(text: str) -> int:
    if len(text) > DIGITS:
        raise ValueError(f"an integer of {len(text)} digits")
    return int(text)
