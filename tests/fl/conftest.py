"""What the tests of runs share: a configuration that takes a second, and how to compare two runs."""

import json
from pathlib import Path

import pytest

from fl import config
from fl.clients.plain import take_apart
from fl.run import models
from fl.run.keys import TIMING
from fl.run.rundir import CHECKPOINT, CLIENTS, METRICS, read_jsonl

TINY = """
name = "tiny"
num_clients = 4
num_rounds = 5
[data]
train_per_client = 40
test_per_client = 20
[model]
name = "small_cnn"
width = 4
[training]
epochs = 1
batch_size = 16
[topology]
degree = 2
[da_dpfl]
max_wait = 1
delta_pr = 5.0
"""


@pytest.fixture(scope="session")
def tiny_file(tmp_path_factory):
    """Waiting, votes in round 1, prunings in rounds 2, 3 and 4."""
    path = tmp_path_factory.mktemp("config") / "tiny.toml"
    path.write_text(TINY)
    return path


@pytest.fixture(scope="session")
def tiny(tiny_file):
    """A function: that configuration with changes."""
    return lambda *changes: config.load(tiny_file, changes)


def results(path: Path, restored: bool = False) -> tuple:
    """Everything that a run must repeat: lines without what was measured, weights and state byte by byte.
    `restored`: the state as it comes back, wherever clients were kept."""
    lines = [read_jsonl(path / name) for name in (METRICS, CLIENTS)]
    exact = [[{k: v for k, v in line.items() if k not in TIMING} for line in file] for file in lines]
    folder = max((path / CHECKPOINT).glob("round-*"))
    if restored:
        plain, tensors = take_apart(models.read(path).state)
        return *exact, folder.name, plain, {name: x.numpy().tobytes() for name, x in tensors.items()}
    state = json.loads((folder / "state.json").read_text())["body"]["state"]
    return *exact, folder.name, state, [x.read_bytes() for x in sorted(folder.glob("*.safetensors"))]


@pytest.fixture(scope="session")
def same_results():
    """A function: fails unless two run directories hold the same results."""

    def check(ours: Path, theirs: Path, restored: bool = False) -> None:
        names = ("metrics", "clients", "last checkpoint", "state", "tensors")
        for name, a, b in zip(names, results(ours, restored), results(theirs, restored), strict=True):
            assert a == b, name

    return check
