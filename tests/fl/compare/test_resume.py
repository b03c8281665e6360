"""kill -9 between and inside the runs of a comparison: resumed, it gives what the other would have given."""

import random

import pytest
from killed import compare, in_a_process

SEED = 20240415
FOLDERS = ("da_dpfl-seed-0", "b-seed-0")


@pytest.fixture(scope="module")
def quick(tiny_file, tmp_path_factory):
    path = tmp_path_factory.mktemp("config") / "quick.toml"
    path.write_text(tiny_file.read_text().replace("num_rounds = 5", "num_rounds = 2"))
    return path


@pytest.fixture(scope="module")
def whole(quick, tmp_path_factory):
    """A comparison that nobody disturbed, and its number of events."""
    path = tmp_path_factory.mktemp("whole") / "all"
    return path, in_a_process(quick, path, target=compare)


@pytest.mark.parametrize(
    "part", [0.25, 0.5, 0.75]
)  # inside the first run, about between them, inside the last
def test_killed_and_resumed(quick, whole, tmp_path, same_results, part):
    undisturbed, events = whole
    assert events > 40
    moment = int(events * part) + random.Random(f"{SEED} {part}").randrange(-3, 4)
    assert in_a_process(quick, tmp_path / "all", moment, compare) == -1
    first = tmp_path / "all" / FOLDERS[0] / "summary.json"
    before = first.read_bytes() if first.exists() else None
    assert (before is not None) == (part > 0.5) or part == 0.5
    assert 0 < in_a_process(quick, tmp_path / "all", target=compare) < events
    for folder in FOLDERS:
        same_results(tmp_path / "all" / folder, undisturbed / folder)
    assert before in (None, first.read_bytes())  # a finished run is left alone
