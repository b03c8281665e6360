"""Simulated rounds whose clients come and go, and devices of files and tables."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from fl.cli.app import app
from fl.config import Presence
from fl.errors import ConfigError
from fl.simulate import world
from fl.simulate.simulate import Settings, simulate


def sparsefl(*args):
    return CliRunner().invoke(app, ["simulate", *args], prog_name="sparsefl")


def rows_of(**options):
    return [*simulate(Settings(clients=200, rounds=5, max_waits=(0, None), **options))]


def test_a_rate_of_0_is_no_presence():
    for ours, theirs in zip(rows_of(presence=Presence(kind="rate", rate=0.0)), rows_of(), strict=True):
        assert ours.present == 200 and theirs.present is None
        assert (ours.parallelism, ours.depth, ours.waiting_s) == (
            theirs.parallelism,
            theirs.depth,
            theirs.waiting_s,
        )
        assert (ours.time_s, ours.energy_j) == (theirs.time_s, theirs.energy_j)
        assert ours.wave_shares == theirs.wave_shares


def test_fewer_clients_take_less():
    usual, half = rows_of()[1], rows_of(presence=Presence(kind="rate", rate=0.5))[1]
    assert half.present == pytest.approx(100, abs=15)
    assert half.depth.mean < usual.depth.mean and half.parallelism.mean > usual.parallelism.mean
    assert half.energy_j.mean == pytest.approx(usual.energy_j.mean * half.present / 200, rel=0.05)
    assert sum(half.wave_shares) == pytest.approx(1)


def test_nobody_at_all():
    with pytest.raises(ConfigError, match="expected a client that is there in some of 5 rounds, got none"):
        rows_of(presence=Presence(kind="rate", rate=1.0))


def test_the_command_with_traces(tmp_path):
    lines = [f"{k},{1 + k % 2},1e6,{'always' if k < 30 else 'never'}" for k in range(40)]
    trace, out = tmp_path / "trace.csv", tmp_path / "out.json"
    trace.write_text("\n".join(["client,speed,bandwidth,hours_online", *lines]))
    files = ("--device-trace", str(trace), "--presence-trace", str(trace))
    done = sparsefl("--clients", "40", "--rounds", "3", "--hardware", "phone", *files, "--json", str(out))
    assert done.exit_code == 0, done.output
    told = json.loads(out.read_text())
    assert (
        told["settings"]["presence"]["kind"] == "trace" and told["settings"]["model"]["hardware"] == "phone"
    )
    assert [row["present"] for row in told["rows"]] == [30.0]
    slowest = 161.6e9 / 5
    assert told["rows"][0]["time_s"] >= told["settings"]["flop"] / slowest / 2


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--absent-rate", "0.1", "--online", "3"], "one way to come and go, got rate and sessions"),
        (["--absent-rate", "1.5"], "rate: expected"),
        (["--hardware", "toaster"], "hardware: expected 'phone'"),
        (["--device-trace", "none.csv"], "none.csv: No such file"),
        (["--device-trace", "a.csv", "--device-model", "uniform"], "beside a trace, got 'uniform'"),
        (["--device-model", "trace"], "expected the name of a file as trace"),
    ],
)
def test_the_command_refuses(args, message):
    done = sparsefl("--rounds", "2", *args)
    assert done.exit_code == 2 and message in " ".join(done.output.split())


def test_words():
    assert world.comes_and_goes(Presence()) == ""
    told = world.comes_and_goes(world.presences(None, 3.0, None, None, 1.0))
    assert told == ", 3 rounds online and 5 offline"
    assert "20.00 % of the clients absent" in world.comes_and_goes(
        world.presences(0.2, None, None, None, 1.0)
    )
    assert np.isclose(world.devices(None, 0.5, "jetson").compute_watts, 15)
