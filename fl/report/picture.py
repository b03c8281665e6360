"""A page (fl/report/page.py) in a file: as it is, or (.png) as a browser shows it."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from fl.errors import ConfigError, PictureError

_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_PATIENCE = 240  # seconds


def check(path: Path) -> None:
    """Before an hour is spent on it."""
    if path.suffix not in (".html", ".png"):
        raise ConfigError(f"expected a name that ends in .html or .png, got {path}")
    parent = next(one for one in path.absolute().parents if one.exists())
    if path.is_dir() or not parent.is_dir() or not os.access(parent, os.W_OK):
        raise ConfigError(f"expected a file that can be written, got {path}")
    if path.suffix == ".png":
        _browser()


def draw(path: Path, text: str, width: int = 1280, height: int = 1330) -> None:
    """`width` and `height`: of a .png, in pixels."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".html":
            path.write_text(text, encoding="utf-8")
        else:
            _shoot(path, text, width, height)
    except OSError as wrong:
        raise PictureError(f"cannot write {path}: {wrong.strerror or wrong}") from wrong


def _shoot(path: Path, text: str, width: int, height: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        source, shot = Path(folder) / "page.html", Path(folder) / "page.png"
        source.write_text(text, encoding="utf-8")
        command = [_browser(), "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                   f"--window-size={width},{height}", "--virtual-time-budget=20000",
                   f"--user-data-dir={folder}/profile", f"--screenshot={shot}",
                   source.as_uri()]  # fmt: skip
        try:
            done = subprocess.run(command, capture_output=True, timeout=_PATIENCE)
        except subprocess.TimeoutExpired as wrong:
            raise PictureError(
                f"expected {command[0]} to draw {path}, got nothing in {_PATIENCE} s: use .html"
            ) from wrong
        if done.returncode or not shot.is_file():
            ended = f"it ended with code {done.returncode} and no picture"
            raise PictureError(f"expected {command[0]} to draw {path}, but {ended}: use .html")
        shutil.copyfile(shot, path)


def _browser() -> str:
    found = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if found is None:
        raise ConfigError(f"expected one of {list(_BROWSERS)} to draw a .png with, got none: use .html")
    return found
