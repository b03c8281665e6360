"""kill -9 at any moment, and the resumed run writes what the other would have written."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from killed import in_a_process

from fl.run import runs
from fl.run.rundir import METRICS, read_jsonl

ROOT = Path(__file__).parents[3]
SEED = 20240415


@pytest.fixture(scope="module")
def whole(tiny_file, tmp_path_factory):
    """A run that nobody disturbed, and its number of events."""
    path = tmp_path_factory.mktemp("whole") / "run"
    return path, in_a_process(tiny_file, path)


@pytest.mark.parametrize("case", range(4))
def test_killed_and_resumed(tiny_file, whole, tmp_path, same_results, case):
    """Killed before a random step of writing or training; in the last case the resumed run is killed too."""
    undisturbed, events = whole
    assert events > 50
    for part in (2, 4) if case == 3 else (1,):  # the second time fewer are left
        moment = random.Random(SEED + case + part).randrange(events // part)
        assert in_a_process(tiny_file, tmp_path / "run", kill_at=moment) == -1
    assert in_a_process(tiny_file, tmp_path / "run") >= 0
    same_results(tmp_path / "run", undisturbed)


def test_the_command_killed_and_resumed(tiny_file, whole, tmp_path, same_results):
    """The same from outside: a process that knows nothing of it, killed while it trains."""
    path = tmp_path / "run"
    command = [sys.executable, "-m", "fl", "run"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [*command, str(tiny_file), "--out", str(path)], cwd=ROOT, env=environment, stdout=subprocess.DEVNULL
    )
    until = time.monotonic() + 120
    while not ((path / METRICS).exists() and (path / METRICS).stat().st_size) and time.monotonic() < until:
        time.sleep(0.001)
    time.sleep(random.Random(SEED).random() * 0.5)
    process.send_signal(signal.SIGKILL)
    process.wait()
    runs.resume(path, runs.Options(workers=2))
    assert len(read_jsonl(path / METRICS)) == 5
    same_results(path, whole[0])
