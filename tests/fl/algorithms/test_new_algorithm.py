"""An algorithm takes one file: the one that CONTRIBUTING.md prints, put beside the others, runs like them."""

import re
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fl import algorithms, config
from fl.cli.app import app
from fl.config import ConfigError
from fl.run import runs
from fl.run.events import Listener
from fl.run.rundir import CLIENTS, METRICS, read_jsonl
from fl.run.runs import Interrupted, Options

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "CONTRIBUTING.md").read_text()


@pytest.fixture
def tenth(tmp_path, monkeypatch):
    """The file beside those of fl/algorithms, as tenth.py, and nothing else."""
    (source,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    folder = tmp_path / "algorithms"
    folder.mkdir()
    (folder / "tenth.py").write_text(source)
    monkeypatch.setattr(algorithms, "__path__", [*algorithms.__path__, str(folder)])
    algorithms.shipped.cache_clear()
    yield "tenth"
    algorithms.shipped.cache_clear()
    sys.modules.pop("fl.algorithms.tenth")
    del algorithms.tenth


def test_it_is_the_example():
    (source,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert source == (ROOT / "examples" / "gossip.py").read_text()


class StopAtRound2(Listener):
    def round_started(self, t):
        if t == 2:
            raise KeyboardInterrupt


def test_it_runs_like_the_others(tenth, tiny, tmp_path, same_results):
    assert tenth in algorithms.registered() and "da_dpfl" in algorithms.registered()
    cfg = tiny("algorithm=tenth", "tenth.share=0.25", "num_rounds=3", "messages.values=q8")
    assert config.loads(config.dumps(cfg)).settings == cfg.settings and cfg.settings.share == 0.25
    summary = runs.start(cfg, tmp_path / "whole", Options(workers=1))
    with pytest.raises(Interrupted):
        runs.start(cfg, tmp_path / "cut", Options(2, StopAtRound2()))
    runs.resume(tmp_path / "cut", Options(workers=2))
    same_results(tmp_path / "cut", tmp_path / "whole")

    rounds, clients = (read_jsonl(tmp_path / "whole" / name) for name in (METRICS, CLIENTS))
    assert len(rounds) == 3 and len(clients) == 3 * 4 and summary["algorithm"] == "tenth"
    assert rounds[1]["bytes_total"] < 0.3 * rounds[1]["bytes_total_dense"]  # 8 bits per number
    assert rounds[-1]["loss"] < rounds[0]["loss"]


def test_its_settings_are_checked_and_listed(tenth, tiny):
    with pytest.raises(ConfigError, match="tenth.share: expected a number up to 1.0, got 2.0"):
        tiny("algorithm=tenth", "tenth.share=2.0")
    assert ("tenth.share", "float", "0.5", "weight of the client's own model") in config.keys()
    assert "tenth" in CliRunner().invoke(app, ["list"]).output


def test_it_is_gone_afterwards(tiny):
    with pytest.raises(ConfigError, match="algorithm: expected FILE.py or one of"):
        tiny("algorithm=tenth")
