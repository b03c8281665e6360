"""Pages (fl/report/page.py): the figures in them, the console of a browser that shows them, how they look."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

# frames, since windows have a least width; they tell by messages, since no file may look into another
_FRAMES = """<!doctype html><meta charset="utf-8"><body><script>
addEventListener("message", message => {
  const told = document.createElement("pre");
  told.className = "told";
  told.textContent = JSON.stringify(message.data);
  document.body.append(told);
});
</script>
"""
_TELLER = """<script>
addEventListener("load", () => setTimeout(() => parent.postMessage({
  page: %s,
  heading: (document.querySelector("h1") || {}).textContent,
  width: innerWidth,
  contentWidth: document.documentElement.scrollWidth,
  wanted: document.querySelectorAll(".plotly-graph-div").length,
  drawn: [...document.querySelectorAll(".plotly-graph-div")].filter(
    figure => figure.querySelector(".main-svg") && figure.getBoundingClientRect().height > 200
      && figure.querySelector(".scatterlayer .trace, .barlayer .trace, .heatmaplayer .hm")).length,
  loaded: performance.getEntriesByType("resource").map(entry => entry.name),
  labels: [...document.querySelectorAll(".ytick text, .legendtext")].map(label => label.textContent),
  scripts: document.scripts.length,
}, "*"), 300));
</script>
"""


def figures(text: str) -> dict[str, tuple]:
    """{title: (traces, layout)} as a browser finds them in a page."""
    found = {}
    for section in re.findall(r"<section.*?</section>", text, re.DOTALL):
        title = re.search("<h2>(.*?)</h2>", section)[1]
        call = re.search(r'Plotly\.newPlot\(\s*"figure-\d+",\s*', section)
        if call is None:
            assert 'class="empty">No data: ' in section, title
            continue
        traces, end = json.JSONDecoder().raw_decode(section, call.end())
        comma = re.compile(r",\s*").match(section, end)
        found[title] = traces, json.JSONDecoder().raw_decode(section, comma.end())[0]
    return found


def look(pages: dict[str, tuple[str, int]], folder: Path) -> tuple[dict[str, dict], list[str]]:
    """{name: (HTML, width in pixels)} -> what each page tells, and all lines of the console."""
    body = _FRAMES
    for name, (text, width) in pages.items():
        file = folder / f"{name}.html"
        file.write_text(text.replace("</body>", _TELLER % json.dumps(name) + "</body>"), encoding="utf-8")
        body += f'<iframe src="{file.as_uri()}" width="{width}" height="900" frameborder="0"></iframe>\n'
    (folder / "frames.html").write_text(body)
    done = subprocess.run(
        [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
         "--no-first-run", "--hide-scrollbars", "--window-size=1400,1000", "--virtual-time-budget=20000",
         "--enable-logging=stderr", "--v=0", f"--user-data-dir={folder / 'profile'}",
         "--dump-dom", (folder / "frames.html").as_uri()],
        capture_output=True, text=True, timeout=500,
    )  # fmt: skip
    told = [json.loads(html.unescape(x)) for x in re.findall(r'<pre class="told">(.*?)</pre>', done.stdout)]
    return {one["page"]: one for one in told}, [x for x in done.stderr.splitlines() if "CONSOLE" in x]
