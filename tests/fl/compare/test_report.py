"""The page of a comparison: its figures hold what was recorded, and a browser draws all of them."""

import json
import re

import browser
import comparisons
import numpy as np
import pytest

from fl.compare import figures as compare_figures
from fl.compare import report as compare_report
from fl.compare import results
from fl.run.rundir import RunDirError

EVIL = "<script>alert(1)</script> & <b>\"names\"</b> 'quoted'"
A, B = [[0.2, 0.6, 0.5], [0.3, 0.7, 0.8]], [[0.1, 0.45, 0.4]]
TITLES = [
    "Accuracy",
    "Accuracy against bytes",
    "Accuracy against FLOP",
    "Accuracy against joules (modelled)",
    "Total cost (modelled)",
    "Cost to the target accuracy (modelled)",
    "Sparsity",
    "Accuracy against seconds (measured)",
    "Partition",
]
needs_chromium = pytest.mark.skipif(
    browser.CHROMIUM is None, reason="no Chromium here: apt-get install chromium"
)


def page(path):
    comparison = results.read(path)
    return compare_report.html(comparison, comparison.to_json())


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    path = tmp_path_factory.mktemp("made") / "all"
    comparisons.make(path, {"da_dpfl": A, "b": B}, ["b:da_dpfl.max_wait=1", "training.lr=0.25"])
    return path


@pytest.fixture(scope="module")
def text(made):
    return page(made)


def column(path, key):
    return np.array([json.loads(one)[key] for one in (path / "metrics.jsonl").open()], dtype=float)


def named(traces, name):
    return [trace for trace in traces if trace["name"] == name and trace["line"].get("width") != 0]


def test_accuracy_is_the_mean_with_a_band(text):
    found = browser.figures(text)
    assert list(found) == TITLES
    traces = found["Accuracy"][0]
    (ours,), (other,) = named(traces, "da_dpfl"), named(traces, "b (1 seed)")
    assert ours["x"] == [0, 1, 2] and ours["y"] == pytest.approx([0.25, 0.65, 0.65])
    assert other["y"] == B[0]
    low, high = ([t["y"] for t in traces if t["name"] == f"da_dpfl{end}"][0] for end in ("", ", upper"))
    sd = np.std(A, axis=0, ddof=1)
    assert low == pytest.approx(np.mean(A, axis=0) - sd) and high == pytest.approx(np.mean(A, axis=0) + sd)
    assert len(traces) == 4  # one seed has no band
    assert [trace.get("showlegend", True) for trace in traces] == [False, False, True, True]


@pytest.mark.parametrize(
    ("title", "key"),
    [
        ("Accuracy against bytes", "bytes_total"),
        ("Accuracy against FLOP", "flop_round"),
        ("Accuracy against joules (modelled)", "sim_energy_j"),
        ("Accuracy against seconds (measured)", "wall_s"),
    ],
)
def test_accuracy_against_what_was_paid_until_then(made, text, title, key):
    traces, layout = browser.figures(text)[title]
    (ours,) = named(traces, "da_dpfl")
    paid = np.mean([np.cumsum(column(made / f"da_dpfl-seed-{seed}", key)) for seed in (0, 1)], axis=0)
    assert ours["x"] == pytest.approx(paid) and ours["y"] == pytest.approx([0.25, 0.65, 0.65])
    (other,) = named(traces, "b (1 seed)")
    assert other["x"] == pytest.approx(np.cumsum(column(made / "b-seed-0", key)))
    assert ("measured" in layout["xaxis"]["title"]["text"]) == (key == "wall_s")
    assert ("modelled" in layout["xaxis"]["title"]["text"]) == (key == "sim_energy_j")


def test_theta_by_hand(tmp_path):
    """2 rounds of 1.5 s and 50 J: 3 $ at theta 0, 51.5 $ in the middle, 100 $ at 1; the target after one."""
    lines = {"a": {"sim_time_s": 1.5, "sim_energy_j": 50}, "b": {"sim_time_s": 40, "sim_energy_j": 1}}
    accuracies = {"a": [[0.8, 0.8], [0.8, 0.8]], "b": [[0.1, 0.2]]}
    comparisons.make(tmp_path / "all", accuracies, lines=lines)
    found = browser.figures(page(tmp_path / "all"))
    ours, other = found["Total cost (modelled)"][0]
    assert (ours["x"][0], ours["x"][25], ours["x"][50]) == (0, 0.5, 1) and len(ours["x"]) == 51
    assert [ours["y"][i] for i in (0, 25, 50)] == pytest.approx([3, 51.5, 100])
    assert [other["y"][i] for i in (0, 25, 50)] == pytest.approx([80, 41, 2])
    (alone,), layout = found["Cost to the target accuracy (modelled)"]
    assert alone["name"] == "a" and [alone["y"][i] for i in (0, 50)] == pytest.approx([1.5, 50])
    assert "Not reached: b." in page(tmp_path / "all") and layout["yaxis"]["type"] == "log"
    assert layout["yaxis"]["ticktext"] == ["1", "2", "5", "10", "20", "50", "100", "200", "500"]


def test_a_name_looks_the_same_in_all_figures(tmp_path):
    accuracies = {f"x{i}": [[0.5, 0.6] if i else []] for i in range(9)}  # the first has not begun
    comparisons.make(tmp_path / "all", accuracies)
    looks = {}
    for title, (traces, _) in browser.figures(page(tmp_path / "all")).items():
        for trace in (trace for trace in traces if title != "Partition"):
            looks.setdefault(trace["name"], set()).add((trace["line"]["color"], trace["line"]["dash"]))
    assert list(looks) == [f"x{i}" for i in range(1, 9)]
    assert all(len(found) == 1 for found in looks.values()) and len(set.union(*looks.values())) == 8


def test_axes_have_titles_and_fit(text, tmp_path):
    for title, (_, layout) in browser.figures(text).items():
        assert layout["xaxis"]["title"]["text"] and layout["yaxis"]["title"]["text"], title
    lines = {"a": {"bytes_total": 1000}, "b": {"bytes_total": 50000}}
    comparisons.make(tmp_path / "all", {"a": [[0.5, 0.6]], "b": [[0.4, 0.5]]}, lines=lines)
    axis = browser.figures(page(tmp_path / "all"))["Accuracy against bytes"][1]["xaxis"]
    assert axis["type"] == "log" and "(log)" in axis["title"]["text"]
    assert dict(zip(axis["tickvals"], axis["ticktext"], strict=True))[20000.0] == "20 kB"


def test_an_axis_of_few_rounds_has_whole_ticks(text, tmp_path):
    comparisons.make(tmp_path / "all", {"a": [[0.5] * 40]})
    for title in ("Accuracy", "Sparsity"):
        assert browser.figures(text)[title][1]["xaxis"]["dtick"] == 1
        assert "dtick" not in browser.figures(page(tmp_path / "all"))[title][1]["xaxis"]  # 40 are too many


def test_a_curve_of_one_seed_beside_bands_says_so(tmp_path, text):
    names = {trace["name"] for trace in browser.figures(text)["Accuracy"][0]}
    assert names == {"da_dpfl", "da_dpfl, upper", "b (1 seed)"}
    comparisons.make(tmp_path / "all", {"a": [[0.5]], "b": [[0.6]]})
    assert [trace["name"] for trace in browser.figures(page(tmp_path / "all"))["Accuracy"][0]] == ["a", "b"]


def test_ticks_of_logarithmic_axes():
    assert compare_figures._ticks([3.0, 40.0]) == pytest.approx([1, 2, 5, 10, 20, 50, 100, 200, 500])
    assert compare_figures._ticks([0.0, 2e-3, 7.0]) == pytest.approx([1e-3, 1e-2, 0.1, 1, 10])
    assert compare_figures._ticks([0.0]) == [1, 2, 5, 10, 20, 50]


def test_tables_settings_and_hardware(text):
    assert "<td>70.00 ± 14.14</td>" in text and "Target accuracy: 38.00 %" in text
    own, _, common = text.partition("Settings of all")
    own = own.partition("Settings of each")[2]
    assert "da_dpfl.max_wait = 1" in own and "da_dpfl.max_wait = 2" in own
    assert "training.lr = 0.25" in common and "training.lr" not in own
    assert "da_dpfl.delta_v = 0.5" in common  # both have it
    assert "<td>b-seed-0</td><td>finished</td><td>45.00</td><td>1</td><td>31.67</td><td>40.00</td>" in text
    assert "<td>commit</td><td>c0ffee0 / c0ffee1</td>" in text
    assert "Modelled, not measured: homogeneous devices that do 16 TFLOP/s" in text
    assert "Seed 0, the same for all algorithms. Every seed draws its own." in text


def test_partition(text):
    (heat,), layout = browser.figures(text)["Partition"]
    assert heat["z"][1] == [k % 7 + 1 for k in range(12)] and layout["yaxis"]["ticktext"] == ["cat", "dog"]


def test_nothing_has_begun(tmp_path):
    comparisons.make(tmp_path / "all", {"a": [[]], "b": [[], []]})
    text = page(tmp_path / "all")
    assert browser.figures(text) == {} and "No target." in text and text.count("not started") == 3


def test_curves_of_what_is_not_finished(tmp_path):
    comparisons.make(tmp_path / "all", {"a": [[0.1, 0.2, 0.3], [0.5]], "b": [[0.4, 0.5], [0.6]]})
    traces = browser.figures(page(tmp_path / "all"))["Accuracy"][0]
    drawn = {t["name"]: t["y"] for t in traces if t["line"].get("width") != 0}
    assert drawn == {
        "a (1 seed)": [0.1, 0.2, 0.3],
        "b (not finished)": [0.5],
    }  # the rounds that both runs have


def test_curves_of_runs_that_stopped_early(tmp_path):
    """They keep their last accuracy and pay no more."""
    runs = {"a": [[0.1, 0.2, 0.4, 0.6], [0.5, 0.5]]}
    comparisons.make(tmp_path / "all", runs, ["run.patience=1"], lines={"a": {"bytes_total": 100}})
    found = browser.figures(page(tmp_path / "all"))
    (accuracy,) = (t["y"] for t in found["Accuracy"][0] if t["line"].get("width") != 0)
    assert accuracy == pytest.approx([0.3, 0.35, 0.45, 0.55])
    (paid,) = (t["x"] for t in found["Accuracy against bytes"][0] if t["line"].get("width") != 0)
    assert paid == [100, 200, 250, 300]


def test_a_file_that_cannot_be_written(tmp_path):
    comparisons.make(tmp_path / "all", {"a": [[0.5]]})
    (tmp_path / "all" / "report.html").mkdir()
    with pytest.raises(RunDirError, match="cannot write .*report.html"):
        compare_report.write(tmp_path / "all")


def test_the_page_holds_no_html_of_a_name(tmp_path):
    changes = [f"description={json.dumps(EVIL)}"]  # a name may not hold such things
    comparisons.make(tmp_path / "all", {"a": [[0.5]], "b": [[]]}, changes)
    (tmp_path / "all" / "b-seed-0").mkdir()
    (tmp_path / "all" / "b-seed-0" / "failed.txt").write_text(EVIL)
    text = page(tmp_path / "all")
    assert "<script>alert" not in text and '<b>"names' not in text
    assert text.count("&lt;script&gt;alert(1)&lt;/script&gt;") >= 2  # description, failure


def test_nothing_is_loaded_from_elsewhere(text):
    start, end = text.index("<script>"), text.index("</script>")
    assert not re.search(r"https?://|\b(src|href)=|@import|url\(", text[:start] + text[end:])


@needs_chromium
@pytest.mark.timeout(600)  # seconds of work, but a browser may wait long for a busy machine
def test_in_a_browser(tmp_path, text):
    many = {f"algorithm{i}": [[0.1 * i, 0.08 * i, 0.11 * i]] * (1 + i % 3) for i in range(1, 10)}
    comparisons.make(tmp_path / "many", many)
    changes = [f"description={json.dumps(EVIL)}"]  # a name may not hold such things
    comparisons.make(tmp_path / "evil", {"a": [[0.5]], "b": [[]]}, changes)
    comparisons.make(tmp_path / "begun", {"a": [[]]})
    pages = {
        "phone": (text, 390),
        "desktop": (text, 1200),
        "many": (page(tmp_path / "many"), 390),
        "evil": (page(tmp_path / "evil"), 390),
        "begun": (page(tmp_path / "begun"), 390),
    }
    told, console = browser.look(pages, tmp_path)
    assert console == [] and set(told) == set(pages)
    for name, (_, width) in pages.items():
        one = told[name]
        assert one["loaded"] == [] and one["width"] == width, name
        assert one["contentWidth"] <= width, f"{name}: expected no sideways scrolling, got {one}"
        assert one["drawn"] == one["wanted"] == (0 if name == "begun" else 9), name
    assert told["evil"]["heading"] == "demo: a comparison"
    assert {"da_dpfl", "b (1 seed)"} <= set(told["phone"]["labels"])


@needs_chromium
@pytest.mark.timeout(600)
def test_a_picture_for_a_readme(made, tmp_path):
    compare_report.draw(tmp_path / "curves.png", results.read(made))
    assert (tmp_path / "curves.png").read_bytes()[:4] == b"\x89PNG"
    compare_report.draw(tmp_path / "curves.html", results.read(made))
    assert list(browser.figures((tmp_path / "curves.html").read_text())) == TITLES[:2]
