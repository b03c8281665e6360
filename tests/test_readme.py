"""The README's examples run as printed, its commands exist, and its figures are those of the results."""

import json
import re
from pathlib import Path

README = (Path(__file__).parents[1] / "README.md").read_text()
MAKEFILE = (Path(__file__).parents[1] / "Makefile").read_text()


def test_the_example_runs(capsys):
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(blocks) == 2 and all(block.count("\n") <= 12 for block in blocks)
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})
    assert capsys.readouterr().out


def test_every_make_target_exists():
    named = set(re.findall(r"`make ([a-z-]+)`|^make ([a-z-]+)", README, re.MULTILINE))
    assert named
    for target in {a or b for a, b in named}:
        assert re.search(rf"^{target}:", MAKEFILE, re.MULTILINE), target


def result(name):
    return json.loads((Path(__file__).parents[1] / "bench" / "results" / f"{name}.json").read_text())


def test_it_is_short():
    assert len(README.splitlines()) <= 140


def test_the_figures_of_the_table_are_those_of_the_results():
    step = result("models-avx512")["summary"]["resnet18, batch 32"]["0.2"]["vs_dense"]
    rounds = result("clients")["summary"]["lenet5"]["0.2"]["vs_loop"]
    message = result("wire")["summary"]["resnet18, first"]["0.2"]["vs_dense"]
    figures = {name: entry["figures"] for name, entry in result("compare-dir")["algorithms"].items()}
    best = {name: figures[name]["accuracy_best"] for name in ("da_dpfl", "dispfl")}
    da_dpfl, dispfl = (f"{100 * one['mean']:.2f} ± {100 * one['sd']:.2f} %" for one in best.values())
    assert f"| {step:.2f} times faster |" in README
    assert f"| {rounds:.2f} times as many |" in README
    assert f"| {message:.2f} times shorter |" in README
    assert f"| {da_dpfl} | DisPFL: {dispfl}, with more bytes |" in README
    assert figures["dispfl"]["bytes_total"]["mean"] > figures["da_dpfl"]["bytes_total"]["mean"]
