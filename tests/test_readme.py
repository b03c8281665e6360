"""The README's example runs as printed, and its commands exist."""

import re
from pathlib import Path

README = (Path(__file__).parents[1] / "README.md").read_text()
MAKEFILE = (Path(__file__).parents[1] / "Makefile").read_text()


def test_the_example_runs(capsys):
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(blocks) == 3
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})
    assert capsys.readouterr().out


def test_every_make_target_exists():
    named = set(re.findall(r"`make ([a-z]+)`|^make ([a-z]+)", README, re.MULTILINE))
    assert named
    for target in {a or b for a, b in named}:
        assert re.search(rf"^{target}:", MAKEFILE, re.MULTILINE), target
