"""Types of `fl` for who uses it: a program outside of the project, under mypy."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
import fl

class Ear(fl.Listener):
    def round_finished(self, record: dict[str, object]) -> None: ...

reveal_type(fl.run("demo", listeners=[Ear(), fl.CSV()]))
reveal_type(fl.load("runs/mine").model(3))
for line in fl.Simulation("demo", executor="local"):
    reveal_type(line)
fl.run("demo", worker=2)
fl.nothing
"""


@pytest.mark.skipif(importlib.util.find_spec("mypy") is None, reason="needs mypy")
def test_a_program_that_uses_fl(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "program.py"]
    environment = {**os.environ, "MYPYPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    lines = [
        line
        for line in done.stdout.splitlines()
        if line.startswith("program.py") and "defined in" not in line
    ]
    told = [line.partition(": ")[2] for line in lines]
    assert told == [
        'note: Revealed type is "fl.run.result.Result"',
        'note: Revealed type is "sparse_engine.model.model.Model"',
        'note: Revealed type is "dict[str, Any]"',
        'error: Unexpected keyword argument "worker" for "run"; did you mean "workers"?  [call-arg]',
        'error: Module has no attribute "nothing"  [attr-defined]',
    ]


@pytest.mark.parametrize("package", ["fl", "sparse_engine", "sparsefl"])
def test_packages_say_that_they_have_types(package):
    assert (ROOT / package / "py.typed").is_file()
