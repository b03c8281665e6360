"""Run directories of an enemy: nothing outside is touched, no traceback, no hang. More: make fuzz-rundir."""

import hostile
import pytest


@pytest.mark.timeout(300)
def test_hostile_run_directories(tmp_path):
    tally = hostile.go(60, 20240415, tmp_path.resolve(), told=lambda _: None)
    assert tally["refused"] > 15 and tally["accepted"] > 5, tally
