"""docs/devices.md: FedScale's traces become one that runs read."""

import pickle
import re
from pathlib import Path

import pytest

from fl.world import trace

PAGE = Path(__file__).parents[1] / "docs" / "devices.md"


def snippet():
    (found,) = re.findall(r"```python\n(import csv.*?)```", PAGE.read_text(), re.DOTALL)
    return found


def test_fedscale_by_hand(tmp_path, monkeypatch):
    """Three devices and two behaviours, in FedScale's form; the last span passes the end of its trace."""
    monkeypatch.chdir(tmp_path)
    capacity = {
        k + 1: {"computation": ms, "communication": 2000.0} for k, ms in enumerate((50.0, 100.0, 400.0))
    }
    behaviour = {
        1: {
            "active": [0, 7200],
            "inactive": [3600, 20000],
            "finish_time": 10800,
            "duration": 0,
            "model": "x",
        },
        2: {"active": [5, 5], "inactive": [5, 4], "finish_time": 10800, "duration": 0, "model": "y"},
    }
    for name, value in (("client_device_capacity", capacity), ("client_behave_trace", behaviour)):
        (tmp_path / name).write_bytes(pickle.dumps(value))
    exec(snippet(), {})
    found = trace.read("trace.csv", 3)
    assert found.speed.tolist() == [2.0, 1.0, 0.25] and found.bandwidth.tolist() == [2e6] * 3
    for hour, first in (
        (0, True),
        (1, False),
        (1.9, False),
        (2, True),
        (2.9, True),
        (3.5, True),
        (4.5, False),
    ):
        assert found.online.at(hour).tolist() == [first, False, first]


def test_the_trace_of_the_page_is_one(tmp_path):
    (text,) = re.findall(r"```csv\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "trace.csv").write_text(text)
    found = trace.read(tmp_path / "trace.csv", 3)
    assert found.speed == pytest.approx([1, 0.25, 0.5]) and found.online.at(23).tolist() == [
        True,
        True,
        False,
    ]
