"""The scripts in examples/ run, say what they say, and write nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SAYS = {
    "gossip.py": [],  # an algorithm: own_algorithm.py runs it
    "own_algorithm.py": ["share 0.2: accuracy", "share 0.8: accuracy", "Model("],
    "own_network.py": ["round 2: accuracy", "Model(2 weights", "Linear(in_features=128, out_features=3"],
    "two_settings.py": ["0.01", "0.1"],
}


def test_every_example_is_known():
    assert {path.name for path in (ROOT / "examples").glob("*.py")} == set(SAYS)


@pytest.mark.parametrize("name", SAYS)
def test_it_runs(name, tmp_path):
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / name],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert all(text in done.stdout for text in SAYS[name]), done.stdout
    assert not [*tmp_path.iterdir()]
