"""A page (fl/page.py) in a file: as it is, or (.png) as a browser shows it."""

import shutil
import subprocess
import tempfile
from pathlib import Path

from fl.errors import ConfigError

_BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def check(path: Path) -> None:
    """Before an hour is spent on it."""
    if path.suffix not in (".html", ".png"):
        raise ConfigError(f"expected a name that ends in .html or .png, got {path}")
    if path.suffix == ".png":
        _browser()


def draw(path: Path, text: str, width: int = 1280, height: int = 1330) -> None:
    """`width` and `height`: of a .png, in pixels."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".html":
        path.write_text(text, encoding="utf-8")
        return
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "page.html"
        source.write_text(text, encoding="utf-8")
        command = [_browser(), "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                   f"--window-size={width},{height}", "--virtual-time-budget=20000",
                   f"--user-data-dir={folder}/profile", f"--screenshot={path.resolve()}",
                   source.as_uri()]  # fmt: skip
        subprocess.run(command, check=True, capture_output=True, timeout=240)


def _browser() -> str:
    found = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if found is None:
        raise ConfigError(f"expected one of {list(_BROWSERS)} to draw a .png with, got none: use .html")
    return found
