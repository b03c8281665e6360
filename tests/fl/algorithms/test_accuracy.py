"""What accuracy means: over all clients, each with the model that it would use, in every place the same."""

import json
from dataclasses import replace

import comparisons
import pytest
from central import env, model
from fakes import accuracy, make_env

from fl.algorithms import ditto, fedavg, feddst
from fl.compare import report as compare_report
from fl.compare import results
from fl.compare import table as compare_table
from fl.errors import ConfigError, RunDirError
from fl.report import figures as report_figures
from fl.report import summary as report_summary
from fl.run import metrics, recorded, runs, setup
from fl.run.executor import Threads
from fl.run.rundir import METRICS, read_jsonl
from fl.run.runs import Options
from fl.train.report import Report
from fl.train.worker import Worker

# One weight moves. Client k goes half way from what it gets to its goal; "accuracy" is the way that is left.
# The server samples 0 and 2, then 1 and 2; client 3 never.
GOALS = [[goal, 0, 0, 0, 0] for goal in (8, 16, 40, 64)]
# w^1 = (4 + 20) / 2 = 12 and w^2 = (14 + 26) / 2 = 20; w_0 = 4, w_1 = 14, w_2 = 20, then 26
LAST_LOCAL = {
    "accuracy_mean": [(4 + 4 + 20 + 52) / 4, (4 + 2 + 14 + 44) / 4],  # 1 and 3, then 3: the server's model
    "accuracy_before": [(8 + 16 + 40 + 64) / 4, (4 + 4 + 28 + 52) / 4],
    "accuracy_sampled": [(4 + 20) / 2, (2 + 14) / 2],
    "accuracy_global": [(4 + 4 + 28 + 52) / 4, (12 + 4 + 20 + 44) / 4],
    "accuracy_min": [4, 2],
    "accuracy_max": [52, 44],
}
# v_0 = 4, v_1 = 0, then 8, v_2 = 20, then 30, v_3 = 0
PERSONAL = LAST_LOCAL | {
    "accuracy_mean": [(4 + 16 + 20 + 64) / 4, (4 + 8 + 10 + 64) / 4],
    "accuracy_before": [(8 + 16 + 40 + 64) / 4, (4 + 16 + 20 + 64) / 4],
    "accuracy_sampled": [(4 + 20) / 2, (8 + 10) / 2],
    "accuracy_min": [4, 4],
    "accuracy_max": [64, 64],
}
BY_HAND = [
    (fedavg, fedavg.Config(clients_per_round=2), LAST_LOCAL),
    (feddst, feddst.Config(clients_per_round=2, density=1.0), LAST_LOCAL),
    (ditto, ditto.Config(clients_per_round=2, global_epochs=1, personal_epochs=1, pull=0.0), PERSONAL),
]


@pytest.mark.parametrize(("algorithm", "cfg", "wanted"), BY_HAND)
def test_who_was_not_sampled_counts_with_the_model_it_would_use(algorithm, cfg, wanted):
    world = env(cfg, model([0] * 5), GOALS, samples=[1] * 4, seed=7)
    state = algorithm.init(world)
    for t, sampled in enumerate([(0, 2), (1, 2)]):
        reports = {k: Report(accuracy=999, flop=1) for k in sampled}
        result = replace(algorithm.run_round(state, t, world), reports=reports)
        modelled = metrics.modelled(result, world.clock(t))
        line = metrics.round_record(t, result, modelled, 0.1, {"wall_s": 0.0})
        assert {key: line[key] for key in wanted} == {key: values[t] for key, values in wanted.items()}
        assert line["sampled"] == 2
        state = result.state


@pytest.mark.parametrize("name", ["fedavg", "feddst"])
def test_the_kept_numbers_are_those_of_the_kept_models(name, tiny):
    """On real data: here the models are kept, and tested again after every round."""
    algorithm = {"fedavg": fedavg, "feddst": feddst}[name]
    setting = setup.prepare(tiny())
    worker, last = Worker(setting), {}
    with Threads(setting, 1) as executor:
        cfg = algorithm.Config(clients_per_round=1)
        given = {"initial": setting.initial, "training": setting.training, "num_rounds": 4}
        world = make_env(cfg, 4, executor, seed=2, **given)
        state = algorithm.init(world)
        for t in range(4):
            (sampled,) = fedavg.inputs(state, t, world)
            result = algorithm.run_round(state, t, world)
            state = result.state
            last[sampled] = result.models[sampled]
            wanted = [accuracy(worker, k, last.get(k, state.model)) for k in range(4)]
            assert result.accuracy == wanted and result.facts["accuracy_sampled"] == wanted[sampled]
    assert 1 < len(last) < 4  # some never trained


@pytest.mark.parametrize("name", ["fedavg", "feddst", "ditto"])
def test_run_and_compare_give_one_number_for_one_run(name, tiny, tmp_path):
    cfg = tiny(f"algorithm={name}", f"{name}.clients_per_round=2", "num_rounds=6")
    summary = runs.start(cfg, tmp_path / "run", Options(workers=1))
    lines = read_jsonl(tmp_path / "run" / METRICS)
    figures = results.figures(lines)
    for key in (key for key in figures if key.startswith("accuracy") or key == "round_best"):
        assert figures[key] == summary[key] and summary[key] is not None, key
    for kind, key in (("", "accuracy_mean"), ("global_", "accuracy_global")):
        values = [line[key] for line in lines]
        assert summary[f"accuracy_{kind}best"] == max(values)
        assert summary[f"accuracy_{kind}last5"] == pytest.approx(sum(values[1:]) / 5)
        assert summary[f"accuracy_{kind}last"] == values[-1]


def test_a_lucky_draw_is_not_the_best(tmp_path):
    drawn = [0.5, 0.9, 0.5, 0.4, 0.5, 0.6]  # of sampled clients
    path = tmp_path / "all"
    plan = comparisons.make(path, {"fedavg": [[0.5, 0.55, 0.6, 0.5, 0.5, 0.5]]})
    file = path / plan.runs[0].folder / METRICS
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    told = [
        line | {"sampled": 2, "accuracy_sampled": value, "accuracy_global": value / 2}
        for line, value in zip(lines, drawn, strict=True)
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in told))
    summary = metrics.summarise(plan.config(plan.runs[0]), told, "", 1, {})
    (file.parent / "summary.json").write_text(json.dumps(summary))
    compared = json.loads(json.dumps(compare_report.write(path).to_json()))["runs"][0]["figures"]
    for figures in (summary, compared):
        assert (figures["accuracy_best"], figures["round_best"]) == (0.6, 2)
        assert figures["accuracy_last5"] == pytest.approx(2.65 / 5)
        assert figures["accuracy_global_best"] == 0.45
    rows = dict(row[:2] for row in report_summary.summary_rows(summary))
    assert rows["test accuracy, best round"] == "60.00 % (round 2)"
    assert rows["test accuracy, mean of last 5"] == "53.00 %"
    assert rows["  server's model, best round"] == "45.00 %"
    assert "90.00" not in (path / "comparison.md").read_text()


def test_fewer_than_five_rounds():
    told = metrics.accuracies([{"round": t, "accuracy_mean": a} for t, a in enumerate([0.25, 0.75])])
    assert told["accuracy_last5"] == 0.5 and told["accuracy_global_last5"] is None
    nobody = metrics.accuracies([{"round": 0, "accuracy_mean": None}])
    assert set(nobody.values()) == {None}


def test_an_algorithm_in_which_clients_sit_out_must_say_their_accuracy():
    """Or its mean would be one over those that trained, without a word."""
    world = env(fedavg.Config(clients_per_round=2), model([0] * 5), GOALS, samples=[1] * 4, seed=7)
    result = fedavg.run_round(fedavg.init(world), 0, world)
    reports = {k: Report(accuracy=0.5, flop=1) for k in (0, 2)}
    silent = replace(result, reports=reports, accuracy=None, accuracy_before=None)
    modelled = metrics.modelled(silent, world.clock(0))
    with pytest.raises(ValueError, match="expected Round.accuracy for all clients, got none, and 2 did not"):
        metrics.round_record(0, silent, modelled, 0.1, {"wall_s": 0.0})


def test_runs_of_older_versions_are_not_mixed_in(tmp_path):
    """Their accuracy_mean is over the sampled clients."""
    plan = comparisons.make(tmp_path / "all", {"fedavg": [[0.5]]}, lines={"fedavg": {"sampled": 2}})
    wanted = "got those of sampled clients alone, as older versions wrote them: run it again"
    with pytest.raises(RunDirError, match=wanted):
        recorded.read(tmp_path / "all" / plan.runs[0].folder)
    (run,) = results.read(tmp_path / "all").to_json()["runs"]
    assert wanted in run["message"] and run["figures"] is None


def test_tables_of_older_comparisons_are_refused(tmp_path):
    """Their figures would stand under a heading that says something else."""
    lines = {"fedavg": {"accuracy_global": 0.3, "sampled": 2, "accuracy_sampled": 0.7}}
    comparisons.make(tmp_path / "all", {"beer": [[0.5]], "fedavg": [[0.6]]}, lines=lines)
    told = results.read(tmp_path / "all").to_json()
    assert len(compare_table.results(told).rows) == 2
    for one in told["algorithms"].values():
        del one["figures"]["accuracy_last5"]
    with pytest.raises(ConfigError, match="got those of sampled clients for fedavg, as older versions wrote"):
        compare_table.results(told)
    del told["algorithms"]["fedavg"]  # without a server, figures are what they were
    assert compare_table.results(told).rows[0][:3] == ["beer", "1", "50.00"]


def test_the_report_says_whose_accuracy_it_is(tiny, tmp_path):
    cfg = tiny("algorithm=fedavg", "fedavg.clients_per_round=2", "num_rounds=2")
    runs.start(cfg, tmp_path / "run", Options(workers=1))
    run = recorded.read(tmp_path / "run")
    accuracy = report_figures.accuracy(run)
    drawn = {trace.name: list(trace.y) for trace in accuracy.figure.data}
    assert drawn == {
        "clients' models": run.column("accuracy_mean"),
        "server's model": run.column("accuracy_global"),
        "sampled clients alone": run.column("accuracy_sampled"),
    }
    spread = report_figures.spread(run)
    assert "that trained in the round" in spread.text
    assert spread.figure.data[0].name == "median of those that trained"
