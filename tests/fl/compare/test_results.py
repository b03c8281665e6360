"""The numbers of a comparison against metrics.jsonl, recomputed; its tables; what the target is and costs."""

import json

import comparisons
import numpy as np
import pytest
from rich.console import Console

from fl.compare import report as compare_report
from fl.compare import results
from fl.compare import table as compare_table
from fl.run.rundir import RunDirError
from sparsefl.bench import __main__ as bench

A, B = [[0.2, 0.6, 0.5], [0.3, 0.7, 0.8]], [[0.1, 0.45, 0.4]]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Three rounds; two seeds of da_dpfl, one of b."""
    path = tmp_path_factory.mktemp("made") / "all"
    comparisons.make(path, {"da_dpfl": A, "b": B})
    return path


@pytest.fixture(scope="module")
def told(made):
    compare_report.write(made)
    return json.loads((made / "comparison.json").read_text())


def rounds(path):
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


def column(path, key):
    return np.array([line[key] for line in rounds(path)], dtype=float)


def test_every_run_against_its_lines(made, told):
    assert [run["folder"] for run in told["runs"]] == ["da_dpfl-seed-0", "b-seed-0", "da_dpfl-seed-1"]
    for run, accuracies in zip(told["runs"], (A[0], B[0], A[1]), strict=True):
        path, figures = made / run["folder"], run["figures"]
        assert figures["accuracy_best"] == max(accuracies) and figures["accuracy_last"] == accuracies[-1]
        assert accuracies[figures["round_best"]] == max(accuracies)
        assert figures["sparsity_last"] == 1 - column(path, "density_mean")[-1]
        sums = {key: key for key in ("wall_s", "train_s", "sim_time_s", "sim_energy_j")}
        sums |= {f"bytes_total{count}": f"bytes_total{count}" for count in ("", "_paper", "_dense")}
        sums |= {"flop_total": "flop_round", "flop_total_dense": "flop_dense"}
        for key, source in sums.items():
            assert figures[key] == column(path, source).sum(), key
        for count in ("", "_paper", "_dense"):
            busiest = column(path, f"bytes_busiest{count}")
            found = [figures[f"bytes_busiest_{what}{count}"] for what in ("mean", "max", "last")]
            assert found == pytest.approx([busiest.mean(), busiest.max(), busiest[-1]])
        assert figures["accuracy_last5"] == pytest.approx(sum(accuracies) / 3)
        assert figures["rounds"] == 3
        named = {"accuracy_best", "round_best", "accuracy_last5", "accuracy_last", "sparsity_last", *sums}
        others = {
            key for key in figures if key not in {"rounds", *named} and not key.startswith("bytes_busiest_")
        }
        shared = {f"accuracy_global_{what}" for what in ("best", "last5", "last")}
        assert others - shared == {key for key in figures if key.startswith("energy_")}
        assert all(figures[key] is None for key in others)


def test_means_and_deviations(told):
    runs = [run["figures"] for run in told["runs"] if run["name"] == "da_dpfl"]
    means = told["algorithms"]["da_dpfl"]["figures"]
    assert set(means) == set(runs[0]) and len(runs) == 2
    for key, one in means.items():
        if runs[0][key] is None:
            assert one is None
        else:
            values = np.array([run[key] for run in runs], dtype=float)
            assert one["mean"] == pytest.approx(values.mean()) and one["sd"] == pytest.approx(
                values.std(ddof=1)
            )
    best = means["accuracy_best"]
    assert best == {"mean": pytest.approx(0.7), "sd": pytest.approx(0.02**0.5)}  # of 0.6 and 0.8, by hand
    alone = told["algorithms"]["b"]
    assert alone["figures"]["accuracy_best"] == {"mean": 0.45, "sd": None}
    assert (alone["algorithm"], alone["planned"], alone["finished"]) == ("da_dpfl", 1, 1)


def test_the_target(made, told):
    """Final accuracies 0.65 (mean of 0.5 and 0.8) and 0.4: 95 % of 0.4."""
    assert told["target"]["accuracy"] == pytest.approx(0.38)
    assert told["target"]["meaning"] == "95 % of the worst final accuracy, 40.00 %"
    for run in told["runs"]:
        cost, path = run["to_target"], made / run["folder"]
        assert cost["rounds"] == 2  # in every run the second round is the first at 0.38
        assert cost["bytes_total"] == column(path, "bytes_total")[:2].sum()
        assert cost["bytes_total_paper"] == column(path, "bytes_total_paper")[:2].sum()
        assert cost["flop_total"] == column(path, "flop_round")[:2].sum()
        for key in ("wall_s", "train_s", "sim_time_s", "sim_energy_j"):
            assert cost[key] == column(path, key)[:2].sum(), key
    assert told["algorithms"]["b"]["reached"] == 1


@pytest.mark.parametrize(
    ("accuracies", "target"),
    [
        ({"a": [[0.1, 0.8]], "b": [[0.1, 0.4]]}, 0.38),  # half of the best: learns
        ({"a": [[0.1, 0.8]], "b": [[0.9, 0.39]]}, 0.76),  # less, at the end: does not
        ({"a": [[0.1, 0.8], []], "b": [[]]}, 0.76),  # runs that are not finished do not count
        ({"a": [[None, None]]}, None),  # nobody has test samples
        ({"a": [[]]}, None),
    ],
)
def test_who_learns(tmp_path, accuracies, target):
    comparisons.make(tmp_path / "all", accuracies)
    found = results.read(tmp_path / "all").target
    assert (found and found.accuracy) == (target and pytest.approx(target))


def test_a_target_that_was_given(tmp_path):
    comparisons.make(
        tmp_path / "all", {"a": [[0.1, 0.6, 0.6], [0.6, 0.1, 0.1]], "b": [[0.1, 0.5, 0.59]]}, target=0.6
    )
    told = results.read(tmp_path / "all").to_json()
    assert told["target"] == {"accuracy": 0.6, "meaning": "given"}
    reached = [run["to_target"] and run["to_target"]["rounds"] for run in told["runs"]]
    assert reached == [2, None, 1]
    assert told["algorithms"]["a"]["to_target"]["rounds"] == {"mean": 1.5, "sd": pytest.approx(0.5**0.5)}
    assert told["algorithms"]["b"]["to_target"] is None and told["algorithms"]["b"]["reached"] == 0


def test_the_servers_model_has_a_column(tmp_path):
    comparisons.make(
        tmp_path / "all", {"beer": [[0.5]], "fedavg": [[0.6]]}, lines={"fedavg": {"accuracy_global": 0.3}}
    )
    told = results.read(tmp_path / "all").to_json()
    beer, fedavg = (told["algorithms"][name]["figures"] for name in ("beer", "fedavg"))
    assert beer["accuracy_best"]["mean"] == 0.5 and beer["accuracy_global_best"] is None
    assert fedavg["accuracy_best"]["mean"] == 0.6 and fedavg["accuracy_global_best"]["mean"] == 0.3
    shown = compare_table.results(told)
    place = shown.head.index("server's model, best, %")
    assert [row[place] for row in shown.rows] == ["-", "30.00"]


def test_runs_that_stopped_early_are_complete(tmp_path):
    """The table says how many rounds ran, mean and deviation over seeds; without such runs it does not."""
    runs = {"a": [[0.1, 0.2, 0.4, 0.6], [0.5, 0.5]]}
    comparisons.make(tmp_path / "all", runs, ["run.patience=1"])
    told = results.read(tmp_path / "all").to_json()
    assert told["complete"] and [run["figures"]["rounds"] for run in told["runs"]] == [4, 2]
    shown = compare_table.results(told)
    assert shown.head[2] == "rounds" and shown.rows[0][1:3] == ["2", "3 ± 1.41"]
    comparisons.make(tmp_path / "usual", {"a": [[0.1, 0.2, 0.4, 0.6]]})
    assert "rounds" not in compare_table.results(results.read(tmp_path / "usual").to_json()).head


def test_what_is_not_finished_is_named(tmp_path):
    path = tmp_path / "all"
    comparisons.make(path, {"a": [[0.1, 0.8], [0.2]], "b": [[]], "c": [[0.5]]}, ["name=x"])
    (path / "c-seed-0" / "failed.txt").write_text("expected a finite loss\nTraceback\n")
    comparison = results.read(path)
    told = comparison.to_json()
    assert not told["complete"] and [one["finished"] for one in told["algorithms"].values()] == [1, 0, 0]
    assert compare_table.notes(told) == [
        "b, seed 0: unfinished: not started",
        "c, seed 0: failed: expected a finite loss",
        "a, seed 1: unfinished: 1 round so far",
    ]
    shown = compare_table.results(told)
    assert [row[1] for row in shown.rows] == ["1 of 2", "0 of 1", "0 of 1"]
    assert shown.rows[1][2:] == ["-"] * (len(shown.head) - 2)
    assert "80.00" in shown.rows[0]  # of the finished seed alone


def test_the_table_shows_the_means(told):
    shown = compare_table.results(told)
    row = dict(zip(shown.head, shown.rows[0], strict=True))
    assert row["algorithm"] == "da_dpfl" and row["seeds"] == "2"
    assert row["best accuracy, %"] == "70.00 ± 14.14" and row["mean of last 5, %"] == "51.67 ± 11.79"
    assert "server's model, best, %" not in row and len(row) <= 10
    means = told["algorithms"]["da_dpfl"]["figures"]
    assert row["sparsity, last"] == f"{means['sparsity_last']['mean']:.3f}"
    assert row["sent"] == f"{means['bytes_total']['mean'] / 1e6:.3g} MB"
    assert row["training FLOP"] == f"{means['flop_total']['mean'] / 1e6:.3g} M"
    cost = compare_table.to_target(told)
    assert cost.rows[0][:3] == ["da_dpfl", "2", "2 ± 0"] and cost.rows[1][:3] == ["b", "1", "2"]


def test_measured_and_modelled_have_columns_of_their_own(told):
    for shown in (compare_table.results(told), compare_table.to_target(told)):
        kinds = [("measured" in head, "modelled" in head) for head in shown.head]
        assert (True, False) in kinds and (False, True) in kinds and (True, True) not in kinds
        assert len(set(shown.head)) == len(shown.head)


def test_markdown(made, told):
    text = (made / "comparison.md").read_text()
    lines = text.splitlines()
    assert lines[0] == "# demo: da_dpfl, b" and "torch 9.9, commit c0ffee0 / c0ffee1, workers 2" in lines
    table = [line for line in lines if line.startswith("|")]
    assert len(table) == 8 and len({line.count("|") for line in table[:4]}) == 1
    assert table[2].startswith("| da_dpfl | 2 | 70.00 ± 14.14 |") and table[1].startswith("| --- | ---: |")


EVIL = (
    "<script>alert(1)</script> | `x` *b* [a](javascript:b) _c_\n\n# <img src=x onerror=y> & \\ [/red] [bold]"
)


def test_markdown_holds_neither_html_nor_markdown_of_a_name(tmp_path):
    """Of the description and what a run says of its end; a name may not hold such things."""
    changes = [f"description={json.dumps(EVIL)}"]
    comparisons.make(tmp_path / "all", {"a_b": [[0.5]], "b": [[]]}, changes)
    (tmp_path / "all" / "b-seed-0").mkdir()
    (tmp_path / "all" / "b-seed-0" / "failed.txt").write_text(EVIL)
    compare_report.write(tmp_path / "all")
    text = (tmp_path / "all" / "comparison.md").read_text()
    assert (
        "<" not in text and "&lt;script&gt;alert(1)&lt;/script&gt; \\| \\`x\\` \\*b\\* \\[a\\](java" in text
    )
    assert (
        text.count("&lt;img src=x onerror=y&gt; &amp; \\\\ \\[/red\\] \\[bold\\]") == 1
    )  # the first line alone of failed.txt
    assert "\\_c\\_ # &lt;img" in text  # no new line, so no heading
    assert [line for line in text.splitlines() if line.startswith("#")] == [text.splitlines()[0]]
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert rows[2].startswith("| a_b | 1 |") and len({row.count("|") for row in rows[:4]}) == 1


def test_markup_of_a_name_is_printed_as_it_is(tmp_path):
    comparisons.make(tmp_path / "all", {"a": [[0.5]], "b": [[]]}, [f"description={json.dumps(EVIL)}"])
    (tmp_path / "all" / "b-seed-0").mkdir()
    (tmp_path / "all" / "b-seed-0" / "failed.txt").write_text("[/red] [bold]x[/bold] [link=http://a]y[/link]")
    with open(tmp_path / "out", "w") as file:
        compare_table.show(Console(width=100, file=file), results.read(tmp_path / "all").to_json())
    assert (
        "b, seed 0: failed: [/red] [bold]x[/bold] [link=http://a]y[/link]\n" in (tmp_path / "out").read_text()
    )


def test_results_go_into_a_document(made, told, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- bench comparison -->\n<!-- end -->\n")
    assert bench.main(["table", str(made / "comparison.json"), "--into", str(page)]) == 0
    lines = page.read_text().splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert len(table) == 4 and table[2].startswith("| da_dpfl | 2 | 70.00 ± 14.14 |")
    assert any("commit c0ffee0 / c0ffee1" in line for line in lines)


@pytest.mark.parametrize("width", [60, 100, 300])
def test_every_figure_is_on_the_terminal(told, width, tmp_path):
    with open(tmp_path / "out", "w") as file:
        compare_table.show(Console(width=width, file=file), told)
    text = (tmp_path / "out").read_text()
    assert all(len(line) <= width for line in text.splitlines() if line[:1] in "┏┃┡│└")
    for shown in (compare_table.results(told), compare_table.to_target(told)):
        assert all(f" {cell} " in text for row in shown.rows for cell in row)
    assert (text.count("┏") == 2) == (width == 300)


def test_what_is_no_comparison(tmp_path):
    with pytest.raises(RunDirError, match="expected the directory of a comparison"):
        results.read(tmp_path)
    (tmp_path / "plan.json").write_text("{")
    with pytest.raises(RunDirError, match="expected JSON in .*plan.json"):
        results.read(tmp_path)
