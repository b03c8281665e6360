"""Pictures of pages: refused before the work, drawn by a browser after it."""

import browser
import pytest

from fl import picture


def test_only_pages_and_pictures():
    with pytest.raises(ValueError, match=r"ends in .html or .png, got curves.pdf"):
        picture.check(picture.Path("curves.pdf"))
    picture.check(picture.Path("curves.html"))


def test_without_a_browser_no_picture(monkeypatch, tmp_path):
    monkeypatch.setattr(picture.shutil, "which", lambda name: None)
    with pytest.raises(ValueError, match="use .html"):
        picture.check(tmp_path / "curves.png")


@pytest.mark.skipif(browser.CHROMIUM is None, reason="no Chromium")
def test_a_picture_of_a_page(tmp_path):
    picture.draw(tmp_path / "made.png", "<p>page</p>", 800, 600)
    data = (tmp_path / "made.png").read_bytes()
    assert data[:4] == b"\x89PNG"
    assert [int.from_bytes(data[i : i + 4], "big") for i in (16, 20)] == [800, 600]
