"""Listeners that write figures elsewhere, with stand-ins for the packages that they need."""

import csv
import sys
from types import SimpleNamespace

import pytest

from fl import config
from fl.errors import ConfigError, Missing, RunDirError
from fl.run import events, loggers, runs
from fl.run.events import Listener
from fl.run.rundir import METRICS, read_jsonl
from fl.run.runs import Interrupted, Options

RECORD = {"round": 3, "loss": 0.5, "votes": None, "t_star": 2, "layer_density": {"w": 0.25}}


class Fake:
    """Remembers what is called, under any name."""

    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        def call(*args, **options):
            self.calls.append((name, *args, options) if options else (name, *args))
            return self

        return call


@pytest.fixture
def fake(monkeypatch):
    """A function: puts a Fake in place of a module."""

    def put(module, made=None):
        one = Fake()
        monkeypatch.setitem(sys.modules, module, made(one) if made else one)
        return one

    return put


def told(log, first=3):
    """What a run says to `log`."""
    log.run_started(config.load("demo"), None, first)
    log.round_finished(RECORD)
    log.run_stopped()


def test_by_name():
    (one,) = loggers.made(" csv,csv")
    assert isinstance(one, loggers.CSV)
    with pytest.raises(ConfigError, match="--log: expected one of .*'csv', 'tensorboard'.*, got 'paper'"):
        loggers.made("csv,paper")


@pytest.mark.parametrize("name", ["wandb", "mlflow", "tensorboard"])
def test_a_package_that_is_not_there(name, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    with pytest.raises(Missing, match=f"expected the package {name}, got none: pip install .*{name}"):
        loggers.made(name)


@pytest.mark.parametrize("make", [loggers.CSV, loggers.TensorBoard])
def test_files_need_a_directory(make, fake):
    fake("torch.utils.tensorboard")
    with pytest.raises(ConfigError, match="expected a directory of the run for"):
        make().run_started(config.load("demo"), None, 0)


def test_tensorboard_writes_through_no_link(fake, tmp_path):
    fake("torch.utils.tensorboard")
    (tmp_path / "tensorboard").symlink_to(tmp_path)
    with pytest.raises(RunDirError, match="expected a folder, got a link"):
        loggers.TensorBoard().run_started(config.load("demo"), tmp_path, 0)


def test_tensorboard_gets_every_number(fake, tmp_path):
    one = fake("torch.utils.tensorboard", lambda fake: SimpleNamespace(SummaryWriter=fake.made))
    log = events.Several([loggers.TensorBoard()])
    log.run_started(config.load("demo"), tmp_path, 3)
    log.round_finished(RECORD)
    log.run_stopped()
    assert one.calls == [
        ("made", tmp_path / "tensorboard", {"purge_step": 3}),
        ("add_scalar", "loss", 0.5, 3),
        ("add_scalar", "t_star", 2, 3),
        ("add_scalar", "layer_density/w", 0.25, 3),
        ("flush",),
        ("close",),
    ]


def test_wandb(fake, monkeypatch):
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    one = fake("wandb")
    told(*loggers.made("wandb"))
    (init, given), log, finish = one.calls
    assert init == "init" and (given["project"], given["group"]) == ("sparsefl", "demo")
    assert given["name"] == "demo, from round 3" and given["config"]["training"]["lr"] > 0
    assert log == ("log", {"loss": 0.5, "t_star": 2, "layer_density/w": 0.25}, {"step": 3})
    assert finish == ("finish",)


def test_mlflow(fake, monkeypatch):
    monkeypatch.setattr(loggers, "_PARAMETERS", 10)
    one = fake("mlflow")
    told(*loggers.made("mlflow"), first=0)
    start, *parameters, log, end = one.calls
    assert start == ("start_run", {"run_name": "demo"}) and end == ("end_run",)
    assert log == ("log_metrics", {"loss": 0.5, "t_star": 2, "layer_density/w": 0.25}, {"step": 3})
    assert len(parameters) > 1 and all(len(some) <= 10 for _, some in parameters)
    settings = {key: value for _, some in parameters for key, value in some.items()}
    assert settings["training.lr"] > 0 and settings["algorithm"] == "da_dpfl"


def test_nothing_is_stopped_that_did_not_start(fake):
    ones = [fake("wandb"), fake("mlflow")]
    for log in loggers.made("wandb,mlflow"):
        log.run_stopped()
    assert not any(one.calls for one in ones)


class StopAtRound2(Listener):
    def round_started(self, t):
        if t == 2:
            raise KeyboardInterrupt


def test_csv_is_the_lines_as_a_table_also_of_a_run_that_was_resumed(tiny, tmp_path):
    path = tmp_path / "run"
    with pytest.raises(Interrupted):
        listener = events.Several([loggers.CSV(), StopAtRound2()])
        runs.start(tiny("num_rounds=3"), path, Options(1, listener))
    with (path / "metrics.csv").open("a") as file:
        file.write("half a line")
    runs.resume(path, Options(1, loggers.CSV()))
    with (path / "metrics.csv").open(newline="") as file:
        rows = [*csv.DictReader(file)]
    lines = read_jsonl(path / METRICS)
    assert len(rows) == 3 and [*rows[0]] == [*loggers.cells(lines[0])]
    for row, line in zip(rows, lines, strict=True):
        for key, value in loggers.cells(line).items():
            assert row[key] == "" if value is None else float(row[key]) == value
    runs.start(tiny("num_rounds=1"), path, Options(1, overwrite=True))
    assert not (path / "metrics.csv").exists()  # --overwrite knows the name


def test_csv_goes_through_no_link(tmp_path):
    log, other = loggers.CSV(), tmp_path / "other"
    other.write_text("mine")
    (tmp_path / "run").mkdir()
    log.run_started(config.load("demo"), tmp_path / "run", 0)
    (tmp_path / "run" / "metrics.csv").unlink()
    (tmp_path / "run" / "metrics.csv").symlink_to(other)
    with pytest.raises(RunDirError, match="expected a file, got a link"):
        log.round_finished(RECORD)
    assert other.read_text() == "mine"
