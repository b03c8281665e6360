"""Files of somebody else: only files are opened, only JSON is read."""

import os
import socket

import pytest

from fl.errors import RunDirError
from fl.run import files


def test_files_are_read(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b.json").write_text('{"x": [1, 2.5, null, true]}')
    assert files.read_json(tmp_path, "a/b.json") == {"x": [1, 2.5, None, True]}
    with pytest.raises(FileNotFoundError):
        files.reader(tmp_path, "nothing")


@pytest.mark.parametrize(
    "kind", ["link", "link to a folder", "broken link", "device", "pipe", "folder", "socket"]
)
@pytest.mark.timeout(20)
def test_nothing_but_files_is_opened(tmp_path, kind, monkeypatch):
    """Neither to read nor to write; a pipe is not waited for."""
    (tmp_path / "victim").write_text("precious")
    path = tmp_path / "run" / "x"
    path.parent.mkdir()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "socket":
        monkeypatch.chdir(path.parent)
        socket.socket(socket.AF_UNIX).bind("x")
    else:
        wheres = {"link": tmp_path / "victim", "device": "/dev/zero", "link to a folder": tmp_path}
        path.symlink_to(wheres.get(kind, "nowhere"))
    for flags in (os.O_RDONLY, os.O_RDWR | os.O_CREAT, os.O_WRONLY | os.O_APPEND | os.O_CREAT):
        with pytest.raises(RunDirError, match="expected a file, got a (link|pipe|folder|socket)"):
            files.open_file(path.parent, "x", flags)
    assert (tmp_path / "victim").read_text() == "precious"


def test_no_link_leads_out_of_the_directory(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "x").write_text("1")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoint").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunDirError, match="expected a folder, got a link"):
        files.reader(tmp_path / "run", "checkpoint/x")
    with pytest.raises(RunDirError, match="expected a folder, got a link"):
        files.is_folder(tmp_path / "run" / "checkpoint")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")  # where the user points is the user's choice
    assert files.read_json(tmp_path / "link", "x") == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, "nested too deeply"),
        ("NaN", "NaN, which is no number"),
        ("[-Infinity]", "-Infinity, which is no number"),
        ("1e999", "too large: 1e999"),
        ("9" * 31, "an integer of 31 digits"),
        ("9" * 5000, "an integer of 5000 digits"),
        ("{", "Expecting"),
    ],
)
def test_json_that_no_program_should_use(tmp_path, text, message):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(RunDirError, match=f"expected JSON in .*x.json, got .*{message}"):
        files.read_json(tmp_path, "x.json")


def test_a_file_of_terabytes_is_not_read(tmp_path):
    (tmp_path / "x").touch()
    os.truncate(tmp_path / "x", 1 << 43)
    with pytest.raises(RunDirError, match="expected at most 268,435,456 bytes"):
        files.read_json(tmp_path, "x")
    with pytest.raises(RunDirError, match="line 1: expected at most"):
        [*files.each_line(tmp_path, "x")]


def test_a_draft_that_is_a_link_is_not_written_through(tmp_path):
    """Nor emptied: write_atomic opens a name that it can be told in advance."""
    (tmp_path / "victim").write_text("precious")
    (tmp_path / ".summary.json.new").symlink_to(tmp_path / "victim")
    files.write_atomic(tmp_path / "summary.json", b"{}")
    assert (tmp_path / "victim").read_text() == "precious" and (tmp_path / "summary.json").read_text() == "{}"
    assert not os.path.lexists(tmp_path / ".summary.json.new")
