"""Pages: text stays text, lines can be told apart, panels say what is missing."""

import html
import re
import subprocess

import browser
import plotly.graph_objects as go
import pytest

from fl.report import page
from fl.report.page import Curve, Panel


def test_no_two_lines_look_the_same():
    drawn = page.curves([Curve(str(i), [0, 1], [i, None]) for i in range(20)])
    looks = {(line.line.color, line.line.dash) for line in drawn.data}
    assert len(looks) == 20 and drawn.data[3].y == (3, None)
    chosen = page.curves([Curve("a", [0], [1], "#123456", "dot")]).data[0]
    assert (chosen.line.color, chosen.line.dash) == ("#123456", "dot")


def test_long_lines_have_no_markers():
    modes = [page.curves([Curve("a", range(n), range(n))]).data[0].mode for n in (1, 60, 61)]
    assert modes == ["lines+markers", "lines+markers", "lines"]


def test_text_is_escaped():
    assert page.table([["<i>", "a & b"]], head=["<u>"]).count("&lt;") == 2
    assert "<td>a &amp; b</td>" in page.table([["<i>", "a & b"]])
    assert "<b>&lt;3</b>" in page.tiles([("n", "<3", "r")])
    shown = page.grid([Panel("<t>", "<x>", None, "<no>")])
    assert "<h2>&lt;t&gt;</h2>" in shown and "&lt;x&gt;" in shown and '"empty">&lt;no&gt;' in shown
    assert "<title>&lt;t&gt;</title>" in page.document("<t>", "<p>x</p>")
    assert page.plain('<b> & "') == '&lt;b&gt; &amp; "'


def test_figures_are_numbered():
    shown = page.grid([Panel("a", "", go.Figure()), Panel("b", "", None), Panel("c", "", go.Figure())])
    assert [f'"figure-{i}",' in shown for i in range(3)] == [True, False, True]
    assert shown.count("<section") == 3


def test_labels_of_a_heat_map():
    few = page.heat([0, 1], ["a" * 18, "b" * 19], [[1, 2], [3, 4]], "n")
    assert few.layout.yaxis.ticktext == ("a" * 18, "b" * 17 + "…")
    assert few.data[0].customdata[1][0] == "b" * 19
    for n in (1, 25, 26, 1000):
        ticks = page.heat([0], [str(i) for i in range(n)], [[i] for i in range(n)], "n").layout.yaxis.tickvals
        assert len(ticks) == {1: 1, 25: 25, 26: 13, 1000: 25}[n] and ticks[0] == 0


def test_bands_lie_between_their_lines():
    figure = go.Figure()
    page.band(figure, [0, 1], [1, 2], [3, 4], "range", "#0072b2", 0.5)
    upper, lower = figure.data
    assert upper.y == (3, 4) and lower.y == (1, 2) and lower.fill == "tonexty"
    assert lower.fillcolor == "rgba(0, 114, 178, 0.5)" and not upper.showlegend


_CLICKED = """<script>
HTMLAnchorElement.prototype.click = function () {
  const told = document.createElement("pre");
  told.textContent = `${this.download} ${this.href.slice(0, 5)}`;
  document.body.append(told);
};
addEventListener("load", () => document.querySelector("button.svg").click());
</script></body>"""


def test_every_figure_can_be_saved_and_nothing_else():
    shown = page.grid([Panel('a "b" <c>', "", go.Figure()), Panel("none", "", None)])
    assert shown.count("<button") == 1 and 'data-figure="figure-0" data-file="a-b-c"' in shown
    assert "save a &quot;b&quot; &lt;c&gt; as SVG" in shown


@pytest.mark.skipif(browser.CHROMIUM is None, reason="no Chromium")
def test_the_button_saves_vectors(tmp_path):
    """A browser that is asked to save says under which name; the rules of the page allow it."""
    figure = page.dressed(page.curves([Curve("a", [0, 1], [1, 2])]), "x", "y")
    text = page.document("t", page.grid([Panel("Accuracy (%)", "", figure)]))
    (tmp_path / "page.html").write_text(text.replace("</body>", _CLICKED), encoding="utf-8")
    done = subprocess.run(
        [browser.CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000",
         f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", (tmp_path / "page.html").as_uri()],
        capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    told = [html.unescape(x) for x in re.findall("<pre>(.*?)</pre>", done.stdout)]
    assert told == ["accuracy.svg blob:"]
