"""The run directory: locked while in use, files whole or old, growing files cut to a length."""

import errno
import json
import os

import pytest

from fl.run import rundir
from fl.run.growing import NOTHING, Mark
from fl.run.rundir import CLIENTS, CONFIG, METRICS, RunDir, RunDirError, read_jsonl


def test_a_directory_holds_one_run(tmp_path):
    with RunDir.create(tmp_path / "a" / "b") as run:
        run.write_text(CONFIG, "x")
    with pytest.raises(RunDirError, match="which holds one: continue it with --resume"):
        RunDir.create(tmp_path / "a" / "b")
    with RunDir.open(tmp_path / "a" / "b") as run:
        assert (run / CONFIG).read_text() == "x"


def test_two_at_once_are_refused(tmp_path):
    with RunDir.create(tmp_path) as run:
        run.write_text(CONFIG, "x")
        with pytest.raises(RunDirError, match="in use by another run"):
            RunDir.open(tmp_path)
    RunDir.open(tmp_path).close()


@pytest.mark.parametrize("how", ["deleted", "replaced"])
def test_no_deleted_file_lets_a_second_run_in(tmp_path, how):
    with RunDir.create(tmp_path) as run:
        run.write_text(CONFIG, "x")
        (tmp_path / ".lock").unlink()
        if how == "replaced":
            (tmp_path / ".lock").write_text("")
        with pytest.raises(RunDirError, match="in use by another run"):
            RunDir.open(tmp_path)
    RunDir.open(tmp_path).close()


def test_a_lock_that_is_a_link_empties_nothing(tmp_path):
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / CONFIG).write_text("x")
    (tmp_path / "run" / ".lock").symlink_to(tmp_path / "victim")
    with pytest.raises(RunDirError, match="expected a file, got a link"):
        RunDir.open(tmp_path / "run")
    assert (tmp_path / "victim").read_text() == "precious"


def test_no_run_there(tmp_path):
    with pytest.raises(RunDirError, match=r"expected the directory of a run, got .* no config.toml"):
        RunDir.open(tmp_path)


def test_a_file_in_the_way(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(
        RunDirError, match="cannot make the run directory .*file.*: (File exists|Not a directory)"
    ):
        RunDir.create(tmp_path / "file" / "run")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_may_not_be_written(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(RunDirError, match="Permission denied"):
        RunDir.create(tmp_path / "run")


def test_lines_are_appended_and_cut(tmp_path):
    with RunDir.create(tmp_path) as run:
        run.begin()
        assert run.marks() == {METRICS: NOTHING, CLIENTS: NOTHING}
        run.append(METRICS, [{"round": 0, "a": None}])
        marks = run.marks()
        run.append(METRICS, [{"round": 1}])
        run.append(CLIENTS, [{"round": 1, "client": k} for k in range(3)])
        run.cut(marks)
        assert read_jsonl(tmp_path / METRICS) == [{"round": 0, "a": None}]
        assert read_jsonl(tmp_path / CLIENTS) == []
        with pytest.raises(RunDirError, match="expected at least 1000 bytes in .*metrics.jsonl"):
            run.cut(marks | {METRICS: Mark(1000, "0" * 64)})


def test_half_a_line_is_not_read(tmp_path):
    (tmp_path / METRICS).write_text('{"round": 0}\n{"rou')
    assert read_jsonl(tmp_path / METRICS) == [{"round": 0}]


def test_no_nan_in_json(tmp_path):
    with RunDir.create(tmp_path) as run, pytest.raises(ValueError, match="not JSON compliant"):
        run.append(METRICS, [{"loss": float("nan")}])


def test_a_write_that_fails_changes_nothing(tmp_path, monkeypatch):
    with RunDir.create(tmp_path) as run:
        run.write_json("summary.json", {"a": 1})

        def full(_):
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(rundir.os, "fsync", full)
        with pytest.raises(RunDirError, match=r"cannot write summary.json \(.*\): No space left on device"):
            run.write_json("summary.json", {"a": 2})
        with pytest.raises(RunDirError, match="cannot write metrics.jsonl .*No space left"):
            run.append(METRICS, [{}])
        monkeypatch.undo()
        assert run.read_json("summary.json") == {"a": 1}
        assert json.loads((tmp_path / "summary.json").read_text()) == {"a": 1}
        assert not list(tmp_path.glob(".*.new"))
    with pytest.raises(RunDirError, match="cannot read nothing.json .*: No such file"):
        run.read_json("nothing.json")
