"""The stored ratios of a kind of processor, and whether new ones are worse: what bench/regress compares with.

A ratio is a rival's time over ours, both from one run, so that a slow hour does not count. Absolute times are
not stored. A kind is the processor's name with the instruction set in use, and has a
file of its own: bench/regress/baselines/<kind>.json.
"""

import json
import re
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "regress" / "baselines"
WORSE = 0.15  # of the baseline's ratio, beyond which a test fails


def kind(cpu: str, isa: str) -> str:
    """Return the name of a kind of processor, as its file has it."""
    return re.sub("[^a-z0-9]+", "-", f"{cpu} {isa}".lower()).strip("-")


def load(folder: Path, name: str) -> dict[str, float]:
    """The ratios by case; empty where there is no baseline of that kind."""
    path = folder / f"{name}.json"
    return json.loads(path.read_text())["ratios"] if path.exists() else {}


def save(folder: Path, name: str, ratios: dict[str, float], meta: dict[str, Any]) -> Path:
    """Write the ratios of a kind; cases that were not measured now keep theirs."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    rounded = {case: round(ratio, 3) for case, ratio in sorted((load(folder, name) | ratios).items())}
    path.write_text(json.dumps({"meta": meta, "ratios": rounded}, indent=1) + "\n")
    return path


def verdict(case: str, ratio: float, known: float | None) -> str | None:
    """What is wrong with a ratio, or None."""
    if known is None or ratio >= known * (1 - WORSE):
        return None
    least = known * (1 - WORSE)
    wanted = f"at least {least:.2f} times the rival's speed (baseline {known:.2f})"
    return f"{case}: expected {wanted}, got {ratio:.2f}"
