"""Runs whose clients come and go, of every algorithm."""

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest

from fl import algorithms
from fl.errors import ConfigError, Interrupted
from fl.run import present, runs
from fl.run.events import Listener
from fl.run.keys import TIMING
from fl.run.rundir import CHECKPOINT, CLIENTS, METRICS, read_jsonl
from fl.run.runs import Options
from fl.world import presence

NAMES = [*algorithms.shipped()]
RATE = ("presence.kind=rate", "presence.rate=0.4")


def started(tiny, path, name, *changes, workers=1, listener=None):
    fixed = ("topology.kind=ring",) if name == "beer" else ()
    cfg = tiny(f"algorithm={name}", *fixed, *changes)
    runs.start(cfg, path, Options(workers) if listener is None else Options(workers, listener))
    return read_jsonl(path / METRICS)


def there(tiny, name, *changes):
    cfg = tiny(f"algorithm={name}", *changes)
    made = presence.make(cfg.presence, cfg.num_clients, cfg.seed)
    return [{*made.at(t).present(cfg.num_clients).tolist()} for t in range(cfg.num_rounds)]


@pytest.mark.parametrize("policy", ["last_model", "skip"])
@pytest.mark.parametrize("name", NAMES)
def test_only_present_clients_train_send_and_receive(name, policy, tiny, tmp_path):
    changes = (*RATE, f"presence.absent={policy}")
    lines = started(tiny, tmp_path / "run", name, *changes)
    crowd = there(tiny, name, *RATE)
    assert {len(one) for one in crowd} - {0, 4}  # some come, some do not
    assert [line["present"] for line in lines] == [len(one) for one in crowd]
    clients = read_jsonl(tmp_path / "run" / CLIENTS)
    for t, line in enumerate(lines):
        mine = [one for one in clients if one["round"] == t]
        trained = {one["client"] for one in mine}
        assert trained <= crowd[t] and line["trained"] == len(trained)
        assert line["trained"] == (min(2, len(crowd[t])) if "sampled" in line else len(crowd[t]))
        assert all({*one["waited_for"]} <= crowd[t] for one in mine)
        if "sampled" not in line:
            assert sum(one["bytes_up"] for one in mine) == line["bytes_total"]
            assert sum(one["bytes_down"] for one in mine) == line["bytes_total"]
            known = [one["accuracy"] for one in mine]
            assert line["accuracy_mean"] == pytest.approx(sum(known) / len(known))
            assert line["bytes_up_mean"] == pytest.approx(line["bytes_total"] / len(mine))


@pytest.mark.parametrize("name", NAMES)
def test_a_rate_of_0_is_no_presence_at_all(name, tiny, tmp_path):
    """Byte for byte: clients' lines, rounds' lines but for `present`, the state and all weights."""
    for policy in ("last_model", "skip"):
        off = ("presence.kind=rate", "presence.rate=0.0", f"presence.absent={policy}")
        ours, theirs = tmp_path / policy, tmp_path / f"{policy}-without"
        with_it = started(tiny, ours, name, *off, "num_rounds=3")
        without = started(tiny, theirs, name, "num_rounds=3")
        assert [line.pop("present") for line in with_it] == [4] * 3
        assert all("present" not in line for line in without)
        _same(ours, theirs, with_it, without)


def _same(ours, theirs, lines, others):
    def exact(lines):
        return [json.dumps({k: v for k, v in line.items() if k not in TIMING}) for line in lines]

    assert exact(lines) == exact(others)
    assert exact(read_jsonl(ours / CLIENTS)) == exact(read_jsonl(theirs / CLIENTS))
    one, two = (max((path / CHECKPOINT).glob("round-*")) for path in (ours, theirs))
    states = [json.loads((folder / "state.json").read_text())["body"]["state"] for folder in (one, two)]
    assert states[0] == states[1]
    weights = [[x.read_bytes() for x in sorted(folder.glob("*.safetensors"))] for folder in (one, two)]
    assert weights[0] == weights[1] and weights[0]


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_round_is_said_and_moves_nothing(name, tiny, tmp_path):
    lines = started(tiny, tmp_path / "run", name, "presence.kind=rate", "presence.rate=1.0", "num_rounds=2")
    for line in lines:
        assert line["present"] == line["trained"] == line["bytes_total"] == line["flop_round"] == 0
        assert line["accuracy_mean"] is line["accuracy_max"] is line["loss"] is None
        assert 0 < line["density_mean"] <= 1 and line["sim_time_s"] == 0
        assert all(math.isfinite(x) for x in line.values() if isinstance(x, float))
    assert read_jsonl(tmp_path / "run" / CLIENTS) == []


def test_an_empty_round_is_told(tiny, tmp_path):
    class Heard(Listener):
        def __init__(self):
            self.notes, self.present = [], []

        def note(self, text):
            self.notes.append(text)

        def clients_present(self, clients):
            self.present.append(clients)

    heard = Heard()
    off = ("presence.kind=rate", "presence.rate=1.0", "num_rounds=2")
    started(tiny, tmp_path / "run", "da_dpfl", *off, listener=heard)
    assert heard.notes == [f"round {t} is empty: no client is there" for t in range(2)]
    assert heard.present == [0, 0]


@pytest.mark.parametrize("name", ["da_dpfl", "dfedavgm", "gossipfl", "ditto"])
def test_resumed_runs_see_the_same_clients(name, tiny, tmp_path, same_results):
    sessions = ("presence.kind=sessions", "presence.online=2", "presence.offline=2")
    started(tiny, tmp_path / "whole", name, *sessions, workers=2)

    class Stops(Listener):
        def round_finished(self, record):
            if record["round"] == 2:
                raise KeyboardInterrupt

    with pytest.raises(Interrupted):
        started(tiny, tmp_path / "cut", name, *sessions, listener=Stops())
    runs.resume(tmp_path / "cut", Options(1))
    same_results(tmp_path / "cut", tmp_path / "whole")


def test_absent_clients_do_not_take_idle_power(tiny, tmp_path):
    """Half of the clients are absent by a trace: the joules of a round are those of the others."""
    trace = tmp_path / "trace.csv"
    trace.write_text("client,hours_online\n0,always\n1,always\n2,never\n3,never\n")
    changes = ("presence.kind=trace", f"presence.trace={trace}", "num_rounds=1", "presence.absent=skip")
    power = ("devices.compute_watts=0.0", "devices.radio_watts=0.0", "devices.idle_watts=1.0")
    (line,) = started(tiny, tmp_path / "run", "dispfl", *changes, *power)
    clients = read_jsonl(tmp_path / "run" / CLIENTS)
    busy = sum(one["sim_finish_s"] - one["sim_start_s"] for one in clients)
    busy += sum(one["bytes_down"] for one in clients) * 8 / 1e9
    assert line["present"] == 2
    assert line["sim_energy_j"] == pytest.approx(2 * line["sim_time_s"] - busy)


def test_an_algorithm_that_knows_no_presence_is_refused():
    crowd = presence.Attendance(np.array([True, False]))
    with pytest.raises(
        ConfigError, match="presence.kind: expected always with an algorithm that does not ask"
    ):
        present.checked(SimpleNamespace(reports={0: None, 1: None}), crowd)
    one = SimpleNamespace(reports={0: None})
    assert present.checked(one, crowd) is one


def test_a_trace_is_checked_before_anything_is_written(tiny, tmp_path):
    with pytest.raises(ConfigError, match="No such file"):
        started(tiny, tmp_path / "run", "da_dpfl", "presence.kind=trace", "presence.trace=nothing.csv")
    with pytest.raises(ConfigError, match="No such file"):
        started(tiny, tmp_path / "run", "da_dpfl", "devices.kind=trace", "devices.trace=nothing.csv")
    assert not (tmp_path / "run").exists()


def test_a_trace_that_changed_is_told(tiny, tmp_path):
    class Stops(Listener):
        def __init__(self, at):
            self.at, self.notes = at, []

        def note(self, text):
            self.notes.append(text)

        def round_finished(self, record):
            if record["round"] == self.at:
                raise KeyboardInterrupt

    trace, path = tmp_path / "trace.csv", tmp_path / "run"
    trace.write_text("client,hours_online\n0,always\n1,always\n2,always\n3,never\n")
    changes = ("presence.kind=trace", f"presence.trace={trace}")
    with pytest.raises(Interrupted):
        started(tiny, path, "dispfl", *changes, listener=Stops(1))
    same = Stops(2)
    with pytest.raises(Interrupted):
        runs.resume(path, Options(1, same))
    trace.write_text("client,hours_online\n0,always\n1,always\n2,never\n3,never\n")
    other = Stops(None)
    summary = runs.resume(path, Options(1, other))
    assert not any("presence.trace" in note for note in same.notes)
    (told,) = (note for note in other.notes if "presence.trace" in note)
    assert told.startswith(f"presence.trace is not what the run was started with: {trace}, SHA-256 ")
    assert summary["environment"]["presence.trace"].startswith(f"{trace}, SHA-256 ")
    assert [line["present"] for line in read_jsonl(path / METRICS)] == [3, 3, 3, 2, 2]
