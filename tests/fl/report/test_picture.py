"""Pictures of pages: refused before the work, drawn by a browser after it."""

import xml.etree.ElementTree as ET

import browser
import pytest

from fl.errors import PictureError
from fl.report import page, picture
from fl.report.page import Curve, Panel


def test_only_pages_and_pictures():
    with pytest.raises(ValueError, match=r"ends in .html, .png or .svg, got curves.pdf"):
        picture.check(picture.Path("curves.pdf"))
    picture.check(picture.Path("curves.html"))


def test_without_a_browser_no_picture(monkeypatch, tmp_path):
    monkeypatch.setattr(picture.shutil, "which", lambda name: None)
    for ending in ("png", "svg"):
        with pytest.raises(ValueError, match="use .html"):
            picture.check(tmp_path / f"curves.{ending}")


def test_what_cannot_be_written_is_refused_before_the_work(tmp_path):
    (tmp_path / "x.html").mkdir()
    (tmp_path / "file").touch()
    for path in (tmp_path / "x.html", tmp_path / "file" / "y.html"):
        with pytest.raises(ValueError, match="expected a file that can be written"):
            picture.check(path)
        with pytest.raises(PictureError, match="cannot write"):
            picture.draw(path, "<p>page</p>")
    picture.check(tmp_path / "new" / "y.html")


@pytest.mark.parametrize("ending", ["png", "svg"])
@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("exit 3", "with code 3"),
        ("exit 0", "with code 0 and no picture"),
        ("exec sleep 60", "got nothing in 0.2 s"),
    ],
)
def test_a_browser_that_fails_is_a_sentence(tmp_path, monkeypatch, script, message, ending):
    """And leaves the old picture alone."""
    fake = tmp_path / "chromium"
    fake.write_text(f"#!/bin/sh\n{script}\n")
    fake.chmod(0o755)
    monkeypatch.setattr(picture.shutil, "which", lambda name: str(fake))
    monkeypatch.setattr(picture, "_PATIENCE", 0.2 if "sleep" in script else 60)
    made = tmp_path / f"made.{ending}"
    made.write_bytes(b"old")
    with pytest.raises(PictureError, match=message):
        picture.draw(made, "<p>page</p>")
    assert made.read_bytes() == b"old"


@pytest.mark.skipif(browser.CHROMIUM is None, reason="no Chromium")
def test_a_picture_of_a_page(tmp_path):
    picture.draw(tmp_path / "made.png", "<p>page</p>", 800, 600)
    data = (tmp_path / "made.png").read_bytes()
    assert data[:4] == b"\x89PNG"
    assert [int.from_bytes(data[i : i + 4], "big") for i in (16, 20)] == [800, 600]


@pytest.mark.skipif(browser.CHROMIUM is None, reason="no Chromium")
def test_figures_as_vectors(tmp_path):
    """Two in a row, each under its title, all text as text."""
    panels = [
        Panel(
            f"<{i}> & more",
            "",
            page.dressed(page.curves([Curve(f"line {i}", [0, 1], [i, 2])]), "x", "y", 300),
        )
        for i in range(3)
    ]
    picture.draw(tmp_path / "made.svg", page.document("t", page.grid(panels)), 1000)
    root = ET.parse(tmp_path / "made.svg").getroot()
    svg = "{http://www.w3.org/2000/svg}"
    assert root.tag == f"{svg}svg" and (root.get("width"), root.get("height")) == ("1000", "672")
    assert [text.text for text in root.findall(f"{svg}text")] == [f"<{i}> & more" for i in range(3)]
    inner = root.findall(f"{svg}svg")
    assert [(one.get("x"), one.get("y")) for one in inner] == [("0", "36"), ("500", "36"), ("0", "372")]
    for i, one in enumerate(inner):
        assert f"line {i}" in {text.text for text in one.iter(f"{svg}text")}
        assert len([*one.iter(f"{svg}path")]) > 1
