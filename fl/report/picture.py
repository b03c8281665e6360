"""A page (fl/report/page.py) in a file: as it is, as a browser shows it (.png), or its figures (.svg)."""

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from html import escape, unescape
from pathlib import Path
from typing import Any

from fl.errors import ConfigError, PictureError

_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_PATIENCE = 240  # seconds


def check(path: Path) -> None:
    """Before an hour is spent on it."""
    if path.suffix not in (".html", ".png", ".svg"):
        raise ConfigError(f"expected a name that ends in .html, .png or .svg, got {path}")
    parent = next(one for one in path.absolute().parents if one.exists())
    if path.is_dir() or not parent.is_dir() or not os.access(parent, os.W_OK):
        raise ConfigError(f"expected a file that can be written, got {path}")
    if path.suffix != ".html":
        _browser()


def draw(path: Path, text: str, width: int = 1280, height: int = 1330) -> None:
    """`width` and `height`: of a .png, in pixels; a .svg is as wide, and as high as its figures are."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".html":
            path.write_text(text, encoding="utf-8")
        elif path.suffix == ".svg":
            _trace(path, text, width)
        else:
            _shoot(path, text, width, height)
    except OSError as wrong:
        raise PictureError(f"cannot write {path}: {wrong.strerror or wrong}") from wrong


def _shoot(path: Path, text: str, width: int, height: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        shot = Path(folder) / "page.png"
        size = f"--window-size={width},{height}"
        _browse(path, text, Path(folder), [size, "--hide-scrollbars", f"--screenshot={shot}"])
        if not shot.is_file():
            raise _unable(path, 0)
        shutil.copyfile(shot, path)


def _trace(path: Path, text: str, width: int) -> None:
    """All figures of the page as vectors, two in a row, each under its title."""
    with tempfile.TemporaryDirectory() as folder:
        columns = 2 if text.count("Plotly.newPlot(") > 1 else 1
        drawer = _DRAWER % (width // columns)
        page = text.replace("</body>", f"<script>{drawer}</script></body>")
        dom = _browse(path, page, Path(folder), [f"--window-size={width},2000", "--dump-dom"])
        drawn = re.search(r'<pre id="drawn">(.*?)</pre>', dom, re.DOTALL)
        if drawn is None:
            raise _unable(path, 0)
        figures = json.loads(unescape(drawn[1]))
        path.write_text(_joined(figures, width, columns), encoding="utf-8")


_DRAWER = """
addEventListener("load", async () => {
  const figures = [...document.querySelectorAll(".js-plotly-plot")], prefix = "data:image/svg+xml,";
  const drawn = [];
  for (const figure of figures) {
    const size = {format: "svg", width: %d, height: figure._fullLayout.height};
    const svg = decodeURIComponent((await Plotly.toImage(figure, size)).slice(prefix.length));
    drawn.push({title: figure.closest("section").querySelector("h2").textContent, svg, height: size.height});
  }
  const told = document.createElement("pre");
  told.id = "drawn";
  told.textContent = JSON.stringify(drawn);
  document.body.append(told);
});
"""
_TITLE = 36  # pixels above a figure
_STYLE = 'font-family="system-ui, sans-serif" font-size="17" font-weight="bold" fill="#1f2933"'


def _joined(figures: Sequence[dict[str, Any]], width: int, columns: int) -> str:
    """One picture of several; `figures` as the browser made them: title, svg, height."""
    parts, top = [], 0
    for i in range(0, len(figures), columns):
        row = figures[i : i + columns]
        for j, one in enumerate(row):
            left = j * (width // columns)
            parts.append(f'<text x="{left + 12}" y="{top + 24}" {_STYLE}>{escape(one["title"])}</text>')
            parts.append(one["svg"].replace("<svg ", f'<svg x="{left}" y="{top + _TITLE}" ', 1))
        top += _TITLE + max(one["height"] for one in row)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{top}">'
    return "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *parts, "</svg>"]) + "\n"


def _browse(path: Path, text: str, folder: Path, options: Sequence[str]) -> str:
    """What a browser prints that was asked to show the page `text`; `path`: what is drawn, for messages."""
    source = folder / "page.html"
    source.write_text(text, encoding="utf-8")
    command = [_browser(), "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000",
               f"--user-data-dir={folder}/profile", *options, source.as_uri()]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, timeout=_PATIENCE)
    except subprocess.TimeoutExpired as wrong:
        raise PictureError(
            f"expected {command[0]} to draw {path}, got nothing in {_PATIENCE} s: use .html"
        ) from wrong
    if done.returncode:
        raise _unable(path, done.returncode)
    return done.stdout.decode(errors="replace")


def _unable(path: Path, code: int) -> PictureError:
    ended = f"it ended with code {code} and no picture"
    return PictureError(f"expected {_browser()} to draw {path}, but {ended}: use .html")


def _browser() -> str:
    found = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if found is None:
        raise ConfigError(f"expected one of {list(_BROWSERS)} to draw pictures with, got none: use .html")
    return found
