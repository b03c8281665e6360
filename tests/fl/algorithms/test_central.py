"""Runs of the algorithms with a server: the same results whatever happens, and figures that add up."""

from dataclasses import replace
from math import isclose

import pytest
from central import random_env
from killed import in_a_process
from typer.testing import CliRunner

from fl import config
from fl.algorithms import ditto, fedavg, feddst
from fl.cli.app import app
from fl.config import Messages
from fl.run import runs, setup
from fl.run.events import Listener
from fl.run.rundir import CLIENTS, METRICS, read_jsonl
from fl.run.runs import Interrupted, Options

CHANGES = {
    "fedavg": ["messages.values=q8"],  # what messages lost is part of the state
    "ditto": [],
    "feddst": ["feddst.interval=2", "messages.values=bf16"],
}


@pytest.fixture(scope="module", params=CHANGES)
def run(request, tiny, tmp_path_factory):
    """Three rounds of three out of four clients: the configuration, and a run that nobody disturbed."""
    name = request.param
    changes = [f"algorithm={name}", "num_rounds=3", f"{name}.clients_per_round=3", *CHANGES[name]]
    path = tmp_path_factory.mktemp(name) / "run"
    runs.start(tiny(*changes), path, Options(workers=1))
    return tiny(*changes), path


class StopAt(Listener):
    """Interrupts a round when its clients shall train."""

    def __init__(self, t):
        self.t, self.now = t, None

    def round_started(self, t):
        self.now = t

    def wave_started(self, clients):
        if self.now == self.t:
            raise KeyboardInterrupt


def test_interrupted_and_resumed_on_more_workers(run, tmp_path, same_results):
    cfg, path = run
    with pytest.raises(Interrupted):
        runs.start(cfg, tmp_path / "run", Options(1, StopAt(1)))
    assert len(read_jsonl(tmp_path / "run" / METRICS)) == 1
    runs.resume(tmp_path / "run", Options(workers=2))
    same_results(tmp_path / "run", path)


def test_killed_and_resumed(run, tmp_path, same_results):
    cfg, path = run
    file = tmp_path / "config.toml"
    file.write_text(config.dumps(cfg))
    assert in_a_process(file, tmp_path / "run", kill_at=30) == -1  # in the second round
    assert read_jsonl(tmp_path / "run" / METRICS)
    assert in_a_process(file, tmp_path / "run") > 0
    same_results(tmp_path / "run", path)


def test_figures_add_up(run):
    cfg, path = run
    rounds, clients = read_jsonl(path / METRICS), read_jsonl(path / CLIENTS)
    numel = sum(p.numel() for p in setup.prepare(cfg).network.parameters())
    latest: dict[int, float] = {}  # of the last model that each client trained
    for line in rounds:
        mine = [client for client in clients if client["round"] == line["round"]]
        assert len(mine) == line["sampled"] == 3 and len({client["client"] for client in mine}) == 3
        up, down = ([client[key] for client in mine] for key in ("bytes_up", "bytes_down"))
        assert line["bytes_total"] == sum(up) + sum(down) and line["bytes_busiest"] == max(sum(up), *down)
        assert line["bytes_busiest_dense"] == 3 * 4 * numel and line["bytes_total_dense"] == 6 * 4 * numel
        assert isclose(line["bytes_up_mean"], sum(up) / 4) and len(set(down)) == 1
        assert isclose(line["accuracy_sampled"], sum(client["accuracy"] for client in mine) / 3)
        latest |= {client["client"]: client["accuracy"] for client in mine}
        if len(latest) == 4:
            assert isclose(line["accuracy_mean"], sum(latest.values()) / 4)
            assert (line["accuracy_min"], line["accuracy_max"]) == (
                min(latest.values()),
                max(latest.values()),
            )
        last = max(client["sim_finish_s"] for client in mine)
        assert isclose(line["sim_time_s"], last + line["bytes_busiest"] * 8 / 1e9)
        energy = 450 * 5 / 80e12 * line["flop_round"] + 8 / 1e9 * line["bytes_total"]
        assert isclose(line["sim_energy_j"], energy)
        assert 0 <= line["accuracy_global"] <= 1
        assert line["depth"] == 0 and line["pruned"] == 0
    density = 0.5 if cfg.algorithm == "feddst" else 1.0
    (found,) = {line["density_mean"] for line in rounds}
    assert found == pytest.approx(density, abs=1e-3)
    assert len({client["client"] for client in clients}) == 4


def test_the_command_line(tmp_path):
    changes = ["algorithm=feddst", "num_rounds=2", "training.epochs=1", "feddst.interval=1"]
    options = [word for change in changes for word in ("--set", change)]
    out = tmp_path / "run"
    done = CliRunner().invoke(app, ["run", "demo", *options, "--out", str(out), "--workers", "1"])
    assert done.exit_code == 0, done.output
    assert "demo-feddst: feddst on digits" in done.output and (out / "report.html").stat().st_size > 1000
    assert [line["sampled"] for line in read_jsonl(out / METRICS)] == [3, 3]  # as many as neighbours


@pytest.mark.parametrize("algorithm", [fedavg, ditto, feddst])
def test_clients_build_on_their_last_message(algorithm, monkeypatch):
    world = random_env(algorithm.Config(clients_per_round=4), num_rounds=2)
    world, calls = replace(world, messages=Messages(values="q8")), {}
    real = algorithm.send

    def send(model, k, t, messages, before=None, **more):
        calls[k, t] = before, real(model, k, t, messages, before, **more)
        return calls[k, t][1]

    monkeypatch.setattr(algorithm, "send", send)
    state = algorithm.init(world)
    for t in range(2):
        state = algorithm.run_round(state, t, world).state
    asked = [{k for k, when in calls if when == t and k < 7} for t in range(2)]
    assert all(calls[k, 0][0] is None for k in asked[0]) and asked[0] & asked[1] and asked[0] - asked[1]
    for k in asked[1]:
        assert calls[k, 1][0] is (calls[k, 0][1] if k in asked[0] else None)
    uploads = (state.server if algorithm is ditto else state).uploads
    assert all(uploads[k] is calls[k, 1 if k in asked[1] else 0][1] for k in asked[0] | asked[1])
