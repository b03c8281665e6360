"""The memory of the process."""

import numpy as np

from fl.run.meters import memory
from fl.run.meters.memory import Memory, rss


def test_memory_that_is_touched_is_seen():
    before = rss()
    held = np.ones(50_000_000, np.uint8)
    after = Memory().stop()["rss_bytes"]
    assert held.sum() == 50_000_000 and 40e6 < after - before < 200e6


def test_where_the_system_does_not_say(monkeypatch, tmp_path):
    for text in (None, "", "12", "12 x"):
        path = tmp_path / "statm"
        if text is not None:
            path.write_text(text)
        monkeypatch.setattr(memory, "_STATM", path)
        assert rss() is None and Memory().stop() == {"rss_bytes": None}
