"""Traces that a run reads: which they were, and whether they are still the same when it goes on.

Their SHA-256 stands in the environment of each part of a run (fl/run/history.py).
"""

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

from fl.config import Config
from fl.run.history import Facts, History


def facts(cfg: Config) -> Facts:
    """{key: file and checksum} of the traces of a run; they have been read before."""
    named = {
        "devices.trace": cfg.devices.trace if cfg.devices.kind == "trace" else None,
        "presence.trace": cfg.presence.trace if cfg.presence.kind == "trace" else None,
    }
    return {key: _shown(path) for key, path in named.items() if path is not None}


def compare(history: History, now: Facts, note: Callable[[str], None]) -> None:
    """Tell where a trace is not what the last rounds read."""
    before = history[-1].environment if history else {}
    for key, told in now.items():
        was = before.get(key, "not recorded")
        if history and was != told:
            note(
                f"{key} is not what the run was started with: {was} then, {told} now; "
                "its rounds are of two kinds"
            )


def _shown(path: str) -> str:
    return f"{path}, SHA-256 {sha256(Path(path).read_bytes()).hexdigest()[:12]}"
