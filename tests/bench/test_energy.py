"""Joules of steps in turns: blocks, medians, idle power, and what is refused."""

import json

import pytest
from meters import NoSleep, Steady, measuring
from virtual_time import VirtualTime

from fl.errors import ConfigError, NoMeter
from fl.run.meters.energy import CPU, GPU, IDLE, Energy, How
from sparsefl.bench import cli, energy, energy_command, models
from sparsefl.bench.energy import Block, Session


def block(joules, net, steps=10, seconds=10.0, note=None):
    beside = dict.fromkeys((*energy._PARTS, *energy._BOARDS)) | {"energy_cpu_j": joules, "gpu_sm_mhz": 2520}
    return Block(steps=steps, seconds=seconds, joules=joules, net=net, note=note, beside=beside)


def test_contestants_take_turns_and_the_first_round_is_dropped():
    time, order = VirtualTime(), []

    def contestant(name, seconds):
        def step():
            order.append(name)
            time.sleep(seconds)

        return step

    meter = Energy({CPU: Steady(9.0, 90.0, 40.0, 100.0, 44.0)}, {}, 0, NoSleep())
    steps = {"a": contestant("a", 1), "b": contestant("b", 2)}
    found = energy.take_turns(steps, meter, seconds=10, blocks=2, time=time)
    assert "".join(order) == ("a" * 10 + "b" * 5) * 3
    assert [one.joules for one in found["a"]] == [40, 44] and [one.joules for one in found["b"]] == [100, 44]
    assert [(one.steps, one.seconds) for one in found["b"]] == [(5, 10), (5, 10)]


def test_medians_per_step_and_sample():
    told = energy.figures([block(100, 50), block(120, 60), block(500, 70, note="hot")], 4)
    assert told["joules_per_step"] == 12 and told["net_joules_per_step"] == 6
    assert told["joules_per_sample"] == 3 and told["net_joules_per_sample"] == 1.5
    assert told["energy_cpu_j_per_step"] == 12 and told["energy_gpu_j_per_step"] is None
    assert told["gpu_sm_mhz"] == 2520 and told["gpu_temperature_c"] is None
    assert told["step_ms"] == 1000 and told["joules_spread"] == pytest.approx((50 - 10) / 12)
    assert (told["blocks"], told["steps"], told["energy_note"]) == (3, 30, "hot")
    untrusted = energy.figures([block(100, 50)], 4, trusted=False)
    assert untrusted["joules_per_step"] == 10 and untrusted["net_joules_per_step"] is None


def test_an_unknown_block_makes_joules_unknown():
    told = energy.figures([block(100, 50), block(None, None, note="stuck")], 4)
    assert told["joules_per_step"] is told["net_joules_per_step"] is told["joules_spread"] is None
    assert told["energy_note"] == "stuck"
    meter = Energy({CPU: Steady(1.0)}, {})
    assert set(energy.shown(told, meter).values()) == {"unknown"}
    assert set(energy.shown(energy.figures([], 4), Energy({}, {})).values()) == {"no meter"}
    assert energy.shown(energy.figures([block(100, 50)], 4), meter)["per_step"] == "10 J"


def test_what_is_refused():
    slow = Steady(1.0)
    slow.period_s = 1.0
    with pytest.raises(NoMeter, match="energy of CPU: no meter: no file"):
        energy.check(Energy({}, {CPU: "no file"}), 10)
    with pytest.raises(ConfigError, match="--seconds: expected at least 10 per window, got 9.5"):
        energy.check(Energy({CPU: Steady(1.0)}, {}), 9.5)
    with pytest.raises(ConfigError, match="--seconds: expected at least 20, which are 20 updates"):
        energy.check(Energy({CPU: slow}, {}), 19)
    energy.check(Energy({CPU: slow}, {}), 20)


def test_a_session_without_a_meter(monkeypatch):
    monkeypatch.setattr(energy, "opened", lambda how: Energy({}, {CPU: "no file"}))
    with pytest.raises(NoMeter):
        Session(How(), 10)
    with Session(How(), 10, needed=False) as session:
        found = session.columns({"a": lambda: pytest.fail("nothing is run for nothing")}, 4, 1)
    assert found["a"]["joules_per_step"] is None and found["a"]["per_step"] == "no meter"


def test_net_joules_go_where_idle_power_changed(monkeypatch):
    rows = [{"name": "a"} | energy.figures([block(100, 50)], 4), {"name": "b", "skipped": "why"}]
    for after, net in ((20.0, 5.0), (30.0, None)):
        monkeypatch.setattr(energy, "opened", measuring(20.0, after))
        with Session(How(), 10) as session:
            found = session.ended(rows)
        assert found[0]["net_joules_per_step"] == net and found[0]["joules_per_step"] == 10
        assert found[1] == rows[1]
        assert session.facts[IDLE].startswith(f"10.0 W before, {after / 2:.1f} W after")
        assert session.facts[GPU] == "no meter: no board"


@pytest.fixture
def instant(monkeypatch):
    """Windows of one step."""
    real = energy.window
    monkeypatch.setattr(energy, "window", lambda step, meter, seconds, time: real(step, meter, 1e-9, time))
    monkeypatch.setitem(models.MODELS, "lenet5", (10, (1, 28, 28)))


def test_the_command(instant, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(energy, "opened", measuring(20.0, 99.0, 99.0, 50.0, 75.0, 20.0))
    given = energy_command.Arguments(
        how=How(), models=["lenet5"], batches=["8"], densities=["0.5"], blocks=1, json=tmp_path / "made.json"
    )
    assert energy_command.run(given) == 0
    told = json.loads((tmp_path / "made.json").read_text())
    ours, dense = told["rows"]
    assert ours["name"] == "program" and dense["name"].startswith("torch") and "bf16" not in dense["name"]
    assert (ours["joules_per_step"], dense["joules_per_step"]) == (50, 75)
    assert (ours["net_joules_per_sample"], dense["net_joules_per_sample"]) == (30 / 8, 55 / 8)
    assert told["summary"] == {"lenet5, batch 8": {"0.5": {"gross": 1.5, "net": 55 / 30}}}
    assert told["meta"]["energy"][CPU] == "a steady meter" and told["meta"]["seconds"] == 10
    assert "energy of CPU: a steady meter" in capsys.readouterr().out


@pytest.mark.parametrize("meter", [True, False])
def test_bench_models_has_joules(instant, monkeypatch, tmp_path, capsys, meter):
    monkeypatch.setattr(
        models.dense, "rivals", lambda *how, **more: models.dense.Rivals({}, {"torch": "slow"})
    )
    missing = Energy({}, {CPU: "no file"})
    opened = measuring(20.0, *[60.0] * 6, 20.0) if meter else lambda how: missing  # three, two windows each
    monkeypatch.setattr(energy, "opened", opened)
    options = ["models", "--model", "lenet5", "--batch", "8", "--density", "0.5", "--quick", "--energy"]
    assert cli.main([*options, "--json", str(tmp_path / "made.json")]) == 0
    told = json.loads((tmp_path / "made.json").read_text())
    measured = [row for row in told["rows"] if "skipped" not in row]
    assert [row["name"] for row in measured] == ["program", "layers", "masked torch"]
    assert {row["joules_per_step"] for row in measured} == {60 if meter else None}
    assert {row["net_joules_per_step"] for row in measured} == {40 if meter else None}
    assert {row["per_step"] for row in measured} == {"60 J" if meter else "no meter"}
    shown = capsys.readouterr().out
    assert ("60 J" if meter else "no meter") in shown
    assert told["meta"]["energy"][CPU] == ("a steady meter" if meter else "no meter: no file")
