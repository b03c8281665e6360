"""comparison.csv: a row per algorithm, every figure of comparison.json in its own unit, for programs.

    name, algorithm, planned, finished, reached     numbers of runs; reached: the target accuracy
    training.lr ...                                 settings in which rows differ
    accuracy_best_mean, accuracy_best_sd ...        figures of fl/compare/results.py: mean, deviation of seeds
    target_rounds_mean, target_rounds_sd ...        what it took to reach the target accuracy

A cell is empty where there is no value: no run is finished, or one seed has no deviation.
"""

import csv
import io
from typing import Any

from fl.run.recorded import Record

_COUNTS = ("algorithm", "planned", "finished", "reached")
_PARTS = {"figures": "", "to_target": "target_"}
_SPREAD = ("mean", "sd")


def text(told: Record) -> str:
    """comparison.csv of what comparison.json holds."""
    rows = told["algorithms"]
    differing = told.get("differences", ())
    keys = {part: dict.fromkeys(key for one in rows.values() for key in one[part] or {}) for part in _PARTS}
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    heads = [f"{_PARTS[part]}{key}_{of}" for part in _PARTS for key in keys[part] for of in _SPREAD]
    writer.writerow(["name", *_COUNTS, *(one["key"] for one in differing), *heads])
    for name, one in rows.items():
        settings = [difference["values"].get(name) for difference in differing]
        figures = [_cell(one[part], key, of) for part in _PARTS for key in keys[part] for of in _SPREAD]
        writer.writerow([name, *(one[count] for count in _COUNTS), *settings, *figures])
    return buffer.getvalue()


def _cell(spreads: Record | None, key: str, of: str) -> Any:
    """None is an empty cell."""
    one = (spreads or {}).get(key)
    return None if one is None else one[of]
