"""What an earlier run left: refused by name, and removed when asked for, without anything else."""

import os

import pytest

from fl.errors import RunDirError
from fl.run import runs
from fl.run.rundir import METRICS, RunDir, read_jsonl
from fl.run.runs import Options

QUICK = ("num_rounds=2", "training.epochs=0")


def test_a_run_does_not_append_to_what_another_left(tiny, tmp_path):
    """The lines of two runs in one file would be one run's figures."""
    runs.start(tiny(*QUICK), tmp_path / "run", Options(1))
    (tmp_path / "run" / "config.toml").unlink()
    with pytest.raises(
        RunDirError, match=r"with .*checkpoint, clients.jsonl, .*--overwrite removes what a run"
    ):
        runs.start(tiny(*QUICK, "seed=5"), tmp_path / "run", Options(1))
    runs.start(tiny(*QUICK, "seed=5"), tmp_path / "run", Options(1, overwrite=True))
    runs.start(tiny(*QUICK, "seed=5"), tmp_path / "fresh", Options(1))
    ours, fresh = ([line["loss"] for line in read_jsonl(tmp_path / x / METRICS)] for x in ("run", "fresh"))
    assert ours == fresh
    assert sorted(os.listdir(tmp_path / "run")) == sorted(os.listdir(tmp_path / "fresh"))


def test_overwriting_removes_the_files_of_a_run_and_nothing_else(tiny, tmp_path):
    path = tmp_path / "run"
    runs.start(tiny(*QUICK), path, Options(1))
    runs.baseline(path, Options(1))
    precious = [
        "notes.txt",
        "checkpoint/notes.txt",
        "checkpoint/round-00001/notes.txt",
        "baseline/x",
        "data/y",
    ]
    for name in precious:
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_text("precious")
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "config.toml").write_text("precious")
    (path / "exact").symlink_to(tmp_path / "victim")
    RunDir.create(path, overwrite=True).close()
    left = sorted(str(x.relative_to(path)) for x in path.rglob("*") if x.is_file() and x.name != ".lock")
    assert left == sorted(precious) and not (path / "exact").is_symlink()
    assert (tmp_path / "victim" / "config.toml").read_text() == "precious"


def test_a_comparison_is_removed_with_its_runs(tmp_path):
    for name in (
        "plan.json",
        "comparison.md",
        "comparison.csv",
        "comparison.tex",
        "a-seed-0/config.toml",
        "a-seed-0/failed.txt",
        "a-seed-x/config.toml",
    ):
        (tmp_path / "all" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "all" / name).write_text("")
    with pytest.raises(RunDirError, match="which holds one: continue it with --resume"):
        RunDir.create(tmp_path / "all")
    RunDir.create(tmp_path / "all", overwrite=True).close()
    assert sorted(os.listdir(tmp_path / "all")) == [".lock", "a-seed-x"]


def test_a_directory_in_use_is_not_overwritten(tmp_path):
    with RunDir.create(tmp_path / "run") as run:
        run.write_text("config.toml", "")
        with pytest.raises(RunDirError, match="in use by another run"):
            RunDir.create(tmp_path / "run", overwrite=True)
        assert (tmp_path / "run" / "config.toml").exists()


def test_files_of_others_are_not_written_among(tmp_path):
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(RunDirError, match="expected an empty directory, got .* with thesis.tex"):
        RunDir.create(tmp_path)
    assert os.listdir(tmp_path) == ["thesis.tex"]
