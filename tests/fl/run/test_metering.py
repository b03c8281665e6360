"""Runs with meters on: what is in their files, what goes on after a stop, and what older directories say."""

import json
import warnings

import pytest
from meters import measuring

import fl
from fl.errors import RunDirError
from fl.report import report, summary
from fl.run import joules, keys, recorded, runs
from fl.run.meters import energy
from fl.run.meters.energy import CPU, GPU, IDLE, Energy, How
from fl.run.rundir import METRICS, read_jsonl
from fl.run.runs import Options

ASKED = Options(1, energy=How())


@pytest.fixture
def metered(monkeypatch):
    def use(*given, note=None):
        opened = measuring(*given, note=note)
        monkeypatch.setattr(energy, "opened", opened)
        return opened

    return use


def history(path):
    return json.loads((path / "history.json").read_text())


def test_joules_are_in_every_file(metered, tiny, tmp_path):
    opened = metered(20.0, 100.0, 130.0, 20.0)  # idle at 10 W before and after; two rounds
    told = runs.start(tiny("num_rounds=2"), tmp_path / "run", ASKED)
    first, second = read_jsonl(tmp_path / "run" / METRICS)
    assert (first["energy_j"], second["energy_j"]) == (100, 130)
    assert (first["energy_net_j"], second["energy_net_j"]) == (80, 110) and first["idle_w"] == 10
    assert first["energy_cpu_j"] == 100 and first["energy_gpu_j"] is first["energy_note"] is None
    assert first["wall_s"] > 0
    assert told["energy_j"] == 230 and told["energy_net_j"] == 190 and told["energy_gpu_j"] is None
    assert told["idle_w"] == 10 and told["energy_flagged"] == []
    assert told["energy_per_round_j"] == 115
    assert told["energy_per_client_round_j"] == 230 / sum(line["trained"] for line in (first, second))
    assert told["energy_per_step_j"] == 230 / sum(line["steps"] for line in (first, second))
    assert told["energy_per_sample_j"] == 230 / sum(line["samples"] for line in (first, second))
    for environment in (told["environment"], history(tmp_path / "run")[-1]["environment"]):
        assert environment[CPU] == "a steady meter" and environment[GPU] == "no meter: no board"
        assert environment[IDLE] == "10.0 W before, 10.0 W after"
    assert opened.made[0].log == ["start", "stop"] * 4 + ["close"]  # idle, two rounds, idle
    assert recorded.read(tmp_path / "run").summary == told
    assert [key for key in first if key in keys.TIMING] == [*keys.TIMING]


def test_the_report_and_the_table_show_them(metered, tiny, tmp_path):
    metered(20.0, 100.0, None, 100.0, 20.0, note="it <broke>")
    told = runs.start(tiny("num_rounds=3"), tmp_path / "run", ASKED)
    assert told["energy_j"] is None and told["energy_flagged"] == [1]
    rows = {row[0]: row for row in summary.summary_rows(told)}
    assert rows["energy, measured"][1] == "unknown"
    assert rows["  unknown or uncertain in"][1] == "rounds 1"
    assert rows["energy, modelled"][1].endswith(" J")
    page = report.write(tmp_path / "run").read_text()
    assert "it &lt;broke&gt; (rounds 1)" in page and "energy of GPU: no meter: no board" in page
    assert "Joules (measured)" in page and "Energy, modelled" in page


def test_gross_net_and_shares_are_rows(metered, tiny, tmp_path):
    metered(20.0, 100.0, 20.0)
    told = runs.start(tiny("num_rounds=1"), tmp_path / "run", ASKED)
    rows = {row[0].strip(): row[1] for row in summary.summary_rows(told)}
    assert (rows["energy, measured"], rows["net of idle power"]) == ("100 J", "80 J")
    assert rows["per round"] == "100 J" and rows["per client-round"] == "25 J"
    page = report.write(tmp_path / "run").read_text()
    assert "Energy, measured" in page and "net of idle power 80 J" in page


def test_a_baseline_has_joules_too(metered, tiny, tmp_path):
    metered(20.0, 100.0, 20.0)
    runs.start(tiny("num_rounds=1"), tmp_path / "run", ASKED)
    metered(20.0, 300.0, 20.0)
    told = runs.baseline(tmp_path / "run", ASKED)
    assert told["baseline"]["energy_j"] == 300 and told["baseline"]["energy_net_j"] == 280
    row = next(row for row in summary.summary_rows(told) if row[0] == "energy, measured")
    assert row == ("energy, measured", "100 J", "300 J", "3.00x")


@pytest.mark.parametrize("then", [ASKED, Options(1)])
def test_a_run_goes_on_with_and_without(metered, tiny, tmp_path, then):
    metered(20.0, 100.0, 20.0)
    simulation = fl.Simulation(tiny("num_rounds=3"), out=tmp_path / "run", options=ASKED)
    next(iter(simulation))
    simulation.close()
    told = runs.resume(tmp_path / "run", then)
    lines = read_jsonl(tmp_path / "run" / METRICS)
    assert [line["round"] for line in lines] == [0, 1, 2] and lines[0]["energy_j"] == 100
    if then is ASKED:
        assert told["energy_j"] == 100 + 100 + 20
    else:
        assert "energy_j" not in lines[2]
        assert told["energy_j"] is told["energy_per_round_j"] is None  # not those of round 0 alone
        rows = {row[0]: row[1] for row in summary.summary_rows(told)}
        assert "energy, measured" not in rows  # the last rounds were not asked
    assert recorded.read(tmp_path / "run").summary == told
    assert report.write(tmp_path / "run").exists()


def test_an_interrupted_run_closes_its_meters(metered, tiny):
    opened = metered(20.0, 100.0)
    simulation = fl.Simulation(tiny("num_rounds=3"), energy=True)
    next(iter(simulation))
    simulation.close()
    assert opened.made[0].log == ["start", "stop"] * 2 + ["close"]  # nobody waits for idle power then
    assert simulation.loop.options.energy == How()


def test_from_python_a_missing_meter_is_a_warning(monkeypatch, metered, tiny):
    missing = Energy({}, {CPU: "no file", GPU: "no library"})
    monkeypatch.setattr(energy, "opened", lambda how: missing)
    with pytest.warns(UserWarning, match="energy of CPU: no meter: no file; energy of GPU: no meter: no lib"):
        result = fl.run(tiny("num_rounds=1"), workers=1, energy=True)
    assert result.metrics[0]["energy_j"] is None and result.summary["energy_j"] is None
    assert result.summary["environment"][GPU] == "no meter: no library"
    metered(20.0, 100.0, 20.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fl.run(tiny("num_rounds=1"), workers=1, energy=True)


def test_results_do_not_depend_on_it(metered, tiny, tmp_path):
    metered(20.0, 100.0, 20.0)
    plain = fl.run(tiny("num_rounds=2"), workers=1)
    asked = fl.run(tiny("num_rounds=2"), workers=1, energy=True)
    for a, b in zip(plain.metrics, asked.metrics, strict=True):
        assert {k: v for k, v in b.items() if k not in keys.TIMING} == {
            k: v for k, v in a.items() if k not in keys.TIMING
        }
        assert "energy_j" not in a and "energy_j" in b


def test_directories_of_older_versions_still_load(tiny, tmp_path):
    """No trained, steps and samples in lines, no joules in the summary or of the baseline."""
    path = tmp_path / "run"
    runs.start(tiny("num_rounds=2"), path, Options(1))
    runs.baseline(path, Options(1))
    lines = read_jsonl(path / METRICS)
    new = {"trained", "steps", "samples"}
    older = [{key: value for key, value in line.items() if key not in new} for line in lines]
    (path / METRICS).write_text("".join(json.dumps(line) + "\n" for line in older))
    told = json.loads((path / "summary.json").read_text())
    kept = {k: v for k, v in told.items() if not k.startswith(("energy", "gpu", "idle"))}
    kept["baseline"] = {k: v for k, v in told["baseline"].items() if not k.startswith("energy")}
    (path / "summary.json").write_text(json.dumps(kept))
    found = recorded.read(path).summary
    assert found["energy_j"] is found["baseline"]["energy_j"] is None
    assert found["wall_s"] == told["wall_s"] and report.write(path).exists()


@pytest.mark.parametrize(("key", "value"), [("energy_j", -1), ("energy_j", "much"), ("energy_note", 7)])
def test_what_no_meter_wrote_is_refused(tiny, tmp_path, key, value):
    path = tmp_path / "run"
    runs.start(tiny("num_rounds=1"), path, Options(1))
    (line,) = read_jsonl(path / METRICS)
    (path / METRICS).write_text(json.dumps(line | {key: value}) + "\n")
    with pytest.raises(RunDirError, match=f"expected (a number|text) as {key} of round 0"):
        recorded.read(path)


def line(t, accuracy, energy_j, before=None):
    return {"round": t, "accuracy_mean": accuracy, "accuracy_before": before, "energy_j": energy_j}


def test_joules_per_accuracy_point():
    rounds = [line(0, 0.2, 10, before=0.1), line(1, 0.5, 20), line(2, 0.4, 40)]
    assert joules.shares(rounds)["energy_per_point_j"] == pytest.approx(30 / 40)  # up to the best round
    assert joules.shares([line(0, 0.2, 10)])["energy_per_point_j"] is None  # from where?
    assert joules.shares([line(0, None, 10, before=0.1)])["energy_per_point_j"] is None
    assert joules.shares([line(0, 0.1, 10, before=0.1)])["energy_per_point_j"] is None  # nothing gained
    unknown = [line(0, 0.2, None, before=0.1), line(1, 0.5, 20)]
    assert set(joules.shares(unknown).values()) == {None}


@pytest.mark.parametrize("path", ["program", "layers"])
def test_steps_and_samples_are_counted(tiny, path):
    cfg = tiny("num_rounds=1", "training.epochs=2", f"training.path={path}")
    result = fl.run(cfg, workers=1)
    size, epochs = cfg.training.batch_size, 2
    own = [client["samples"] for client in result.clients]
    (told,) = result.metrics
    assert told["trained"] == len(own) == 4 and told["samples"] == epochs * sum(own)
    assert told["steps"] == epochs * sum(-(-n // size) for n in own)
