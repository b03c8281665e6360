"""report.html: its figures hold what was recorded, it needs no network, and a browser draws all of it."""

import json
import random
import re
from dataclasses import replace
from types import SimpleNamespace

import browser
import pytest
from typer.testing import CliRunner

from fl import config
from fl.cli.app import app
from fl.report import figures as report_figures
from fl.report import report
from fl.run import metrics, recorded
from fl.run.rundir import RunDirError

EVIL = "<script>alert(1)</script> & <b>\"names\"</b> 'quoted'"
ACCURACIES = [0.0, 1.0, 0.25, 0.75, 0.5]  # quartiles 0.25, 0.5, 0.75
NO_VOTES = {"votes": None, "drift_mean": None, "drift_ratio_mean": None, "t_star": None, "pruned": 0}

LINES = {  # title of the figure, name in its legend: key of metrics.jsonl
    ("Accuracy", "after training"): "accuracy_mean",
    ("Accuracy", "before training"): "accuracy_before",
    ("Accuracy over clients", "lowest to highest"): "accuracy_min",
    ("Accuracy over clients", "lowest to highest, upper"): "accuracy_max",
    ("Density", "mean over clients"): "density_mean",
    ("Density", "lowest to highest"): "density_min",
    ("Density", "lowest to highest, upper"): "density_max",
    ("Votes to prune", "votes to prune"): "votes",
    ("How much drift still moves", "mean over clients"): "drift_ratio_mean",
    ("Drift", "mean over clients"): "drift_mean",
    ("Waiting", "depth"): "depth",
    ("Bytes sent", "real"): "bytes_total",
    ("Bytes sent", "the paper's count, without masks"): "bytes_total_paper",
    ("Bytes sent", "dense"): "bytes_total_dense",
    ("Bytes of the busiest client", "real"): "bytes_busiest",
    ("Bytes of the busiest client", "the paper's count, without masks"): "bytes_busiest_paper",
    ("Bytes of the busiest client", "dense"): "bytes_busiest_dense",
    ("Training operations", "this run, with growth"): "flop_round",
    ("Training operations", "dense"): "flop_dense",
    ("Time, measured", "round, wall time"): "wall_s",
    ("Time, measured", "local training, summed over clients"): "train_s",
}
KEYS = sorted(set(LINES.values()) | {"sim_time_s", "sim_energy_j"})


needs_chromium = pytest.mark.skipif(
    browser.CHROMIUM is None, reason="no Chromium here: apt-get install chromium"
)


def line(t, layers=("conv1.weight", "linear.weight"), **changes):
    """A line of metrics.jsonl; no two values are the same."""
    rng = random.Random(t)
    values = {key: rng.uniform(0.1, 1) * (1e9 if key[:4] in ("byte", "flop") else 1) for key in KEYS}
    first = {"votes": None, "drift_ratio_mean": None} if t == 0 else {}
    late = {"t_star": 2 if t >= 2 else None, "pruned": 5 if t in (3, 5) else 0}
    layer_density = {name: rng.random() for name in layers}
    return {"round": t, **values, "layer_density": layer_density, "depth": t % 3, **first, **late, **changes}


def make_run(path, rounds, *, changes=(), clients=True, classes=("cat", "dog"), finished=True, num_clients=5):
    """The directory of a run that nobody ran."""
    last = len(rounds) if finished else 8
    cfg = config.load("demo", [f"num_rounds={last}", f"num_clients={num_clients}", *changes])
    path.mkdir(exist_ok=True)
    (path / "config.toml").write_text(config.dumps(cfg))
    (path / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rounds))
    counts = [[k % 7 + c for c in range(len(classes))] for k in range(num_clients)]
    partition = {"classes": list(classes), "train": counts, "test": counts}
    (path / "partition.json").write_text(json.dumps(partition))
    if clients:
        lines = [
            {"round": one["round"], "client": k, "accuracy": a, "accuracy_before": a / 2}
            for one in rounds
            for k, a in enumerate(ACCURACIES)
        ]
        (path / "clients.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    if finished:
        summary = metrics.summarise(cfg, rounds, "program (5 steps)", 2, {"torch": "9.9", "commit": "c0ffee"})
        (path / "summary.json").write_text(json.dumps(summary))
    return path


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("report") / "run", [line(t) for t in range(8)])


@pytest.fixture(scope="module")
def run(path):
    return recorded.read(path)


def texts(run):
    return {panel.title: panel.missing for panel in report_figures.panels(run) if panel.figure is None}


def test_figures_hold_what_was_recorded(path, run):
    found = browser.figures(report.html(run))
    lines = [json.loads(one) for one in (path / "metrics.jsonl").read_text().splitlines()]
    assert len(found) == 14 and len(lines) == 8
    for (title, name), key in LINES.items():
        (trace,) = [trace for trace in found[title][0] if trace["name"] == name]
        assert trace["x"] == list(range(8)), title
        assert trace["y"] == [one[key] for one in lines], (title, name)
    drawn = {trace["name"]: trace["y"] for trace in found["Density of layers"][0]}
    assert drawn == {
        "conv1": [one["layer_density"]["conv1.weight"] for one in lines],
        "linear": [one["layer_density"]["linear.weight"] for one in lines],
    }


def test_clients_and_partition(run):
    found = browser.figures(report.html(run))
    spread = {trace["name"]: trace["y"] for trace in found["Accuracy over clients"][0]}
    assert spread["median"] == [0.5] * 8
    assert spread["middle half"] == [0.25] * 8 and spread["middle half, upper"] == [0.75] * 8
    after, before = found["Clients, last round"][0]
    assert after["x"] == [0, 1, 2, 3, 4] and after["y"] == ACCURACIES
    assert before["y"] == [a / 2 for a in ACCURACIES]
    (heat,), layout = found["Partition"]
    assert heat["z"] == [[0, 1, 2, 3, 4], [1, 2, 3, 4, 5]] and heat["x"] == [0, 1, 2, 3, 4]
    assert layout["yaxis"]["ticktext"] == ["cat", "dog"]


def test_every_axis_has_a_title(run):
    for title, (traces, layout) in browser.figures(report.html(run)).items():
        assert layout["xaxis"]["title"]["text"] in ("round", "client"), title
        assert layout["yaxis"]["title"]["text"], title
        assert all(trace.get("name") or trace["type"] == "heatmap" for trace in traces)


def test_first_pruning_time_and_prunings_are_marked(run):
    found = browser.figures(report.html(run))
    for title in ("Accuracy", "Density", "Votes to prune", "How much drift still moves", "Drift"):
        upright = [shape for shape in found[title][1]["shapes"] if shape["x0"] == shape["x1"]]
        assert [(x["name"], x["x0"]) for x in upright] == [("t* = 2", 2), ("pruning", 3), ("pruning", 5)]
        assert [x.get("showlegend") for x in upright] == [True, True, False]
    shapes = {title: layout.get("shapes", ()) for title, (_, layout) in found.items()}
    levels = {title: [x["y0"] for x in found if x["y0"] == x["y1"]] for title, found in shapes.items()}
    assert levels["Votes to prune"] == [0.5]
    assert levels["How much drift still moves"] == [run.config.settings.delta_pr]
    assert levels["Density"] == [pytest.approx(0.2)]


def test_head_and_end(run):
    text = report.html(run)
    best = max(range(8), key=lambda t: line(t)["accuracy_mean"])
    assert f"{100 * line(best)['accuracy_mean']:.2f} % (round {best})" in text
    sent, dense = (sum(line(t)[key] for t in range(8)) for key in ("bytes_total", "bytes_total_dense"))
    assert f"<td>{dense / sent:.2f}x</td>" in text
    assert text.count("modelled</td>") == 2 and "Modelled, not measured: homogeneous devices" in text
    assert "16 TFLOP/s at 450 W, and 1 Gbit/s" in text
    assert "<td>commit</td><td>c0ffee</td>" in text and "<td>workers</td><td>2</td>" in text
    assert "[da_dpfl.pqi]" in text and "Not finished" not in text


@pytest.mark.parametrize(("ours", "shown"), [(5e8, "2.00x less"), (2e9, "2.00x more"), (0, "<b>none</b>")])
def test_more_or_less(tmp_path, ours, shown):
    lines = [line(0, flop_round=ours, flop_dense=1e9, bytes_total=3e9, bytes_total_dense=9e9)]
    text = report.head(recorded.read(make_run(tmp_path / "run", lines)))
    assert shown in text and "3.00x less" in text and "3 GB, dense 9 GB" in text


def test_a_run_that_is_not_finished(tmp_path):
    path = make_run(tmp_path / "run", [line(0), line(1)], finished=False)
    with open(path / "metrics.jsonl", "a") as file:
        file.write('{"round": 2, "accuracy_me')
    text = report.html(recorded.read(path))
    assert "<b>Not finished:</b> 2 of 8 rounds" in text and "No data: not recorded yet." in text
    accuracy = browser.figures(text)["Accuracy"][0][0]["y"]
    assert accuracy == [line(t)["accuracy_mean"] for t in (0, 1)]
    assert "test accuracy, best round" in text


@pytest.mark.parametrize("files", [[], ["metrics.jsonl", "clients.jsonl", "partition.json"]])
def test_a_run_that_has_just_begun(tmp_path, files):
    path = make_run(tmp_path / "run", [], finished=False)
    for file in files:
        (path / file).unlink()
    run = recorded.read(path)
    missing = texts(run)
    assert len(missing) == 14 if files else 13
    for title, why in missing.items():
        expected = "partition.json is not there." if title == "Partition" else "no round is finished yet."
        assert why == f"No data: {expected}"
    assert "0 of 8 rounds" in report.html(run)


def test_an_algorithm_without_votes_and_waiting(tmp_path, run):
    path = make_run(tmp_path / "run", [line(t, **NO_VOTES, depth=0) for t in range(3)], clients=False)
    plain = recorded.read(path)
    plain = replace(plain, config=SimpleNamespace(algorithm="fedavg"))  # which declares nothing
    missing = texts(plain)
    assert set(missing) == {"Waiting", "Clients, last round"}
    assert not {"Votes to prune", "Drift"} & {panel.title for panel in report_figures.panels(plain)}
    assert missing["Waiting"] == "No data: no client waited for another in any round."
    panels = {panel.title: panel for panel in report_figures.panels(plain)}
    assert not panels["Accuracy"].figure.layout.shapes and not panels["Density"].figure.layout.shapes
    spread = panels["Accuracy over clients"]
    assert spread.figure.data[0].name == "mean" and "run.record_clients" in spread.text
    assert list(spread.figure.data[0].y) == plain.column("accuracy_mean")
    assert texts(run) == {}


def test_keys_that_are_not_there_are_said_to_be_missing(tmp_path):
    lines = [{key: value for key, value in line(t).items() if key != "layer_density"} for t in range(2)]
    run = recorded.read(make_run(tmp_path / "run", lines))
    assert texts(run) == {"Density of layers": "No data: layers were not recorded."}


def test_many_layers_and_many_clients(tmp_path):
    layers = [f"layer{i}.conv.weight" for i in range(30)]
    lines = [line(t, layers) for t in range(4)]
    run = recorded.read(make_run(tmp_path / "run", lines, num_clients=450, clients=False))
    found = browser.figures(report.html(run))
    (heat,), layout = found["Density of layers"]
    assert heat["type"] == "heatmap" and heat["zmax"] == 1
    assert heat["z"] == [[one["layer_density"][name] for one in lines] for name in layers]
    assert layout["yaxis"]["ticktext"] == [f"layer{i}.conv" for i in range(0, 30, 2)]
    (heat,), _ = found["Partition"]
    assert heat["x"] == list(range(0, 450, 3)) and len(heat["z"][0]) == 150
    assert "150 of 450 clients are shown." in report.html(run)


def test_names_are_escaped(tmp_path):
    changes = [f"description={json.dumps(EVIL)}"]  # a name may not hold such things
    run = recorded.read(make_run(tmp_path / "run", [line(0, [EVIL])], changes=changes, classes=[EVIL, EVIL]))
    text = report.html(run)
    assert "<script>alert" not in text and '<b>"names' not in text
    assert "<p>&lt;script&gt;alert(1)" in text and "<title>demo: da_dpfl" in text
    (trace,) = browser.figures(text)["Density of layers"][0]
    assert trace["name"].startswith("&lt;script&gt;")  # plotly reads a few tags itself
    (heat,), layout = browser.figures(text)["Partition"]
    assert len(heat["z"]) == 2 and all("<" not in label for label in layout["yaxis"]["ticktext"])


def test_nothing_is_loaded_from_elsewhere(run):
    text = report.html(run)
    assert "Content-Security-Policy\" content=\"default-src 'none'; script-src 'unsafe-inline'" in text
    start, end = text.index("<script>"), text.index("</script>")
    assert end - start > 3_000_000  # plotly itself
    ours = text[:start] + text[end:]
    assert not re.search(r"https?://|\b(src|href)=|@import|url\(", ours)


def test_the_same_run_gives_the_same_page(path, run):
    assert report.html(run) == report.html(recorded.read(path))


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("metrics.jsonl", '{"round": 0\n{"round": 1}\n', "line 1: expected JSON, got"),
        ("summary.json", "{", "expected JSON in .*summary.json, got"),
        ("clients.jsonl", '{"client": 0}\n', "clients.jsonl: round: expected a number from 0 on, got None"),
    ],
)
def test_damaged_files_are_refused(tmp_path, file, text, message):
    path = make_run(tmp_path / "run", [line(0)])
    (path / file).write_text(text)
    with pytest.raises(RunDirError, match=message):
        report.write(path)
    assert not (path / "report.html").exists()


def sparsefl(*args):
    return CliRunner().invoke(app, [str(arg) for arg in args], prog_name="sparsefl")


def test_command(tmp_path, tiny_file):
    path = tmp_path / "run"
    changes = ["--set", "num_rounds=2", "--set", "num_clients=3"]
    done = sparsefl("run", tiny_file, *changes, "--out", path, "--workers", 1)
    assert done.exit_code == 0 and f"the report is {path / 'report.html'}" in done.output, done.output
    written = (path / "report.html").read_text()
    accuracy = [json.loads(one)["accuracy_mean"] for one in (path / "metrics.jsonl").open()]
    assert browser.figures(written)["Accuracy"][0][0]["y"] == accuracy
    assert browser.figures(written)["Partition"][0][0]["z"]
    (path / "report.html").unlink()
    done = sparsefl("report", path)
    assert done.exit_code == 0 and (path / "report.html").read_text() == written, done.output
    assert not [*path.glob(".report*")]


def test_command_refuses(tmp_path):
    done = sparsefl("report", tmp_path)
    assert done.exit_code == 1 and "expected the directory of a run, got" in done.output
    path = make_run(tmp_path / "run", [line(0)])
    (path / "report.html").mkdir()
    done = sparsefl("report", path)
    assert done.exit_code == 1 and "cannot write" in done.output and "report.html" in done.output
    (path / "config.toml").write_text("num_clients = 'many'")
    done = sparsefl("report", path)
    assert done.exit_code == 2 and "num_clients: expected a whole number, got 'many'" in done.output


@needs_chromium
@pytest.mark.timeout(600)  # seconds of work, but a browser may wait long for a busy machine
def test_in_a_browser(tmp_path, run):
    resnet = [f"layer{i}.conv.weight" for i in range(22)]
    evil = make_run(
        tmp_path / "evil", [line(0, [EVIL])], changes=[f"description={json.dumps(EVIL)}"], classes=[EVIL, "b"]
    )
    long = make_run(tmp_path / "long", [line(t, resnet) for t in range(300)], num_clients=120)
    begun = make_run(tmp_path / "begun", [], finished=False)
    pages = {
        "phone": (report.html(run), 390),
        "desktop": (report.html(run), 1200),
        "evil": (report.html(recorded.read(evil)), 390),
        "long": (report.html(recorded.read(long)), 390),
        "begun": (report.html(recorded.read(begun)), 390),
    }
    told, console = browser.look(pages, tmp_path)
    assert console == [] and set(told) == set(pages)
    for name, (_, width) in pages.items():
        one = told[name]
        assert one["loaded"] == [] and one["width"] == width, name
        assert one["contentWidth"] <= width, f"{name}: expected no sideways scrolling, got {one}"
        assert one["drawn"] == one["wanted"] == {"begun": 1, "evil": 11}.get(name, 14), name
    assert told["evil"]["heading"] == "demo"
    assert any(label.startswith("<script>alert(") for label in told["evil"]["labels"])
    assert {"pruning", "t* = 2", "majority 50%"} <= set(told["phone"]["labels"])


@needs_chromium
@pytest.mark.timeout(600)  # seconds of work, but a browser may wait long for a busy machine
def test_the_browser_would_tell(tmp_path, run):
    """The test above can fail: errors, loading, missing figures and wide pages are seen."""
    text = report.html(run)
    wrong = '<div style="width: 900px">x</div><img src="http://127.0.0.1:9/x.png"><script>nobody()</script></body>'
    broken = text.replace("</body>", wrong).replace('"figure-3",', '"figure-33",')
    told, console = browser.look({"broken": (broken, 390)}, tmp_path)
    assert any("nobody is not defined" in one for one in console)
    assert any("127.0.0.1:9" in one and "Content Security Policy" in one for one in console)
    assert told["broken"]["contentWidth"] >= 900 and told["broken"]["drawn"] == 13


def test_panels_of_many_clients(tmp_path):
    """Clients per second and memory as they were measured; who was there, where clients come and go."""
    lines = [line(t) | {"trained": 30, "wall_s": 1.5, "rss_bytes": 2e9, "present": 40 + t} for t in range(3)]
    run = recorded.read(make_run(tmp_path / "run", lines))
    panels = {panel.title: panel.figure for panel in report_figures.panels(run)}
    assert [*panels["Clients per second (measured)"].data[0].y] == [20.0] * 3
    assert [*panels["Memory (measured)"].data[0].y] == [2e9] * 3
    there, trained = panels["Clients that were there"].data[:2]
    assert [*there.y] == [40, 41, 42] and [*trained.y] == [30] * 3
    plain = recorded.read(make_run(tmp_path / "plain", [line(t) for t in range(3)]))
    assert (
        not {*panels}
        - {panel.title for panel in report_figures.panels(plain)}
        - {
            "Clients per second (measured)",
            "Memory (measured)",
            "Clients that were there",
        }
    )
