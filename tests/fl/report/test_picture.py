"""Pictures of pages: refused before the work, drawn by a browser after it."""

import browser
import pytest

from fl.errors import PictureError
from fl.report import picture


def test_only_pages_and_pictures():
    with pytest.raises(ValueError, match=r"ends in .html or .png, got curves.pdf"):
        picture.check(picture.Path("curves.pdf"))
    picture.check(picture.Path("curves.html"))


def test_without_a_browser_no_picture(monkeypatch, tmp_path):
    monkeypatch.setattr(picture.shutil, "which", lambda name: None)
    with pytest.raises(ValueError, match="use .html"):
        picture.check(tmp_path / "curves.png")


def test_what_cannot_be_written_is_refused_before_the_work(tmp_path):
    (tmp_path / "x.html").mkdir()
    (tmp_path / "file").touch()
    for path in (tmp_path / "x.html", tmp_path / "file" / "y.html"):
        with pytest.raises(ValueError, match="expected a file that can be written"):
            picture.check(path)
        with pytest.raises(PictureError, match="cannot write"):
            picture.draw(path, "<p>page</p>")
    picture.check(tmp_path / "new" / "y.html")


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("exit 3", "with code 3"),
        ("exit 0", "with code 0 and no picture"),
        ("exec sleep 60", "got nothing in 0.2 s"),
    ],
)
def test_a_browser_that_fails_is_a_sentence(tmp_path, monkeypatch, script, message):
    """And leaves the old picture alone."""
    fake = tmp_path / "chromium"
    fake.write_text(f"#!/bin/sh\n{script}\n")
    fake.chmod(0o755)
    monkeypatch.setattr(picture.shutil, "which", lambda name: str(fake))
    monkeypatch.setattr(picture, "_PATIENCE", 0.2 if "sleep" in script else 60)
    (tmp_path / "made.png").write_bytes(b"old")
    with pytest.raises(PictureError, match=message):
        picture.draw(tmp_path / "made.png", "<p>page</p>")
    assert (tmp_path / "made.png").read_bytes() == b"old"


@pytest.mark.skipif(browser.CHROMIUM is None, reason="no Chromium")
def test_a_picture_of_a_page(tmp_path):
    picture.draw(tmp_path / "made.png", "<p>page</p>", 800, 600)
    data = (tmp_path / "made.png").read_bytes()
    assert data[:4] == b"\x89PNG"
    assert [int.from_bytes(data[i : i + 4], "big") for i in (16, 20)] == [800, 600]
