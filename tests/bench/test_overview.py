"""bench/overview.py: the page has every result, its break-evens, what lost, and where it comes from."""

import json
from pathlib import Path

import pytest

from fl.errors import ConfigError
from sparsefl.bench import overview
from sparsefl.bench.picture_speed import Line, intensity, speed

RESULTS = Path(__file__).parents[2] / "bench" / "results"


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ({0.5: 2.0, 0.2: 3.0}, "above 0.5"),
        ({0.5: 0.5, 0.2: 0.9}, "below 0.2"),
        ({0.5: 0.5, 0.3: 2.0}, "0.40"),  # 1 is half way between 0.5 and 2 in the logarithm
        ({0.5: 1.2, 0.2: 0.9}, "above 0.5, but slower at 0.2"),
    ],
)
def test_break_even(points, expected):
    assert Line("a", "b", points).break_even() == expected


def test_the_crossing_is_marked():
    figure = speed("t", "", [Line("a", "b", {0.5: 0.5, 0.3: 2.0})]).figure
    marked = next(trace for trace in figure.data if trace.name == "break-even")
    assert list(marked.x) == [pytest.approx(0.4)]


def test_one_density_is_no_curve():
    assert speed("t", "", [Line("a", "b", {0.5: 2.0})]).figure is None


def test_flop_per_byte_by_hand():
    from sparsefl.bench.layers import Shape

    # 2 channels to 3, 1x1, 4x4 pixels, batch 5, density 0.5: 2 * 5 * 3 * 16 FLOP;
    # 4 * 5 * (32 + 48) bytes of images, 6 weights of 2 bytes and a bit each
    assert intensity(Shape("x", 2, 3, 4, 1), 5, 0.5) == pytest.approx(480 / (1600 + 12 + 0.75))


def test_the_page_names_every_result_and_what_lost():
    results = overview.load(RESULTS)
    page = overview.page(results)
    assert [row[0] for row in overview.origins(results)] == list(results)
    assert all(f"<td>{stem}</td>" in page for stem in results)
    assert any(row[:2] == ("ops", "pack") for row in overview.lost(results))
    names = [name for name, _ in overview.panels(results)]
    assert len(set(names)) == len(names) > 10


def test_a_ratio_below_one_is_listed():
    meta = {"instruction_set": "avx2", "threads": 1}
    rows = [{"op": "pack", "least_bytes": 1}]
    cells = {"pack": {"0.5": {"vs_torch": 0.5, "bandwidth_share": 0.1}, "0.2": {"vs_torch": 1.5}}}
    result = {"meta": meta, "rows": rows, "summary": cells}
    assert overview.lost({"ops": result}) == [("ops", "pack", "density 0.5", "vs_torch", "0.50")]


def test_a_scale_result_has_a_curve():
    cells = {"1000": {"clients_per_s": 50.0}, "100": {"clients_per_s": 40.0}}
    meta = {"instruction_set": "avx2", "threads": 1}
    panels = dict(overview.panels({"scale": {"meta": meta, "rows": [], "summary": cells}}))
    assert list(panels["scale"].figure.data[0].x) == [100, 1000]
    assert dict(overview.panels({}))["scale"].figure is None


def test_an_empty_folder_and_a_strange_file_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="expected result files"):
        overview.load(tmp_path)
    (tmp_path / "a.json").write_text(json.dumps({"x": 1}))
    with pytest.raises(ConfigError, match="expected the result of a benchmark"):
        overview.load(tmp_path)


def test_the_command_writes_a_page_that_loads_nothing(tmp_path):
    told = []
    assert overview.command(RESULTS, tmp_path, False, told.append) == 0
    text = (tmp_path / "report.html").read_text()
    assert "default-src 'none'" in text and len(told) == 1
