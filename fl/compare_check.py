"""Whether the directory of a run holds what its comparison thinks: the run of the plan, whole and unchanged.

    config.toml      is the plan's configuration of this run
    metrics.jsonl    has rounds 0, 1, 2, ..., all of them where the run is finished, each with its figures
    summary.json     says of the rounds what they say themselves
    partition.json   has the samples of every client

What does not hold is damage: the run is named with a sentence, and is in no mean and no figure.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fl import config, metrics, recorded
from fl.compare_plan import Plan, Run
from fl.config import Config
from fl.errors import ConfigError, Expected
from fl.recorded import Recorded
from fl.rundir import CONFIG, METRICS, PARTITION, SUMMARY

_NUMBERS = (
    *(
        f"{bytes_}{count}"
        for bytes_ in ("bytes_total", "bytes_busiest")
        for count in ("", "_paper", "_dense")
    ),
    *(
        "flop_round",
        "flop_dense",
        "sim_time_s",
        "sim_energy_j",
        "wall_s",
        "train_s",
        "density_mean",
        "pruned",
    ),
)
_LARGEST = 1e150  # of a number in a line: means and deviations of such numbers are numbers
_NOT_OF_ROUNDS = ("workers", "environment")  # in summary.json


def examined(plan: Plan, run: Run, folder: Path) -> tuple[Recorded | None, str | None]:
    """What `folder` has of the run, None if it was not begun; and what is wrong with it, None if nothing is.

    A damaged run is not handed on.
    """
    if not (folder / CONFIG).is_file():
        beside = [name for name in (SUMMARY, METRICS) if (folder / name).exists()]
        return None, f"expected {CONFIG} beside {beside[0]}, got none" if beside else None
    try:
        found = recorded.read(folder, clients=False)
        wrong = next(_problems(plan.config(run), found), None)
    except Expected as refused:
        where = f"{CONFIG}: " if isinstance(refused, ConfigError) else ""
        return None, where + "; ".join(str(refused).splitlines())
    return (found, None) if wrong is None else (None, wrong)


def _problems(wanted: Config, found: Recorded) -> Iterator[str]:
    yield from _config(wanted, found.config)
    yield from _rounds(found)
    if found.finished:
        yield from _summary(found)
    if found.partition is not None and not _is_partition(found.partition, wanted.num_clients):
        yield f"expected the samples of {wanted.num_clients} clients by class in {PARTITION}, got others"


def _config(wanted: Config, found: Config) -> Iterator[str]:
    ours, theirs = (_flat(config.plain(config.loads(config.dumps(cfg)))) for cfg in (wanted, found))
    for key in ours | theirs:
        if ours.get(key) != theirs.get(key):
            a, b = (tree.get(key, config.NONE) for tree in (ours, theirs))
            yield f"expected {key} = {a} in {CONFIG}, as the plan has it, got {b}: it is another run"


def _rounds(run: Recorded) -> Iterator[str]:
    there, wanted = len(run.rounds), run.config.num_rounds
    for t, line in enumerate(run.rounds):
        if type(line.get("round")) is not int or line["round"] != t:
            yield f"expected round {t} in line {t + 1} of {METRICS}, got {line.get('round')!r}"
        optional = {key: line[key] for key in line if key.startswith("accuracy_") and line[key] is not None}
        figures: dict[str, Any] = {key: line.get(key) for key in _NUMBERS} | optional
        for key, value in figures.items():
            if type(value) not in (int, float) or not 0 <= value < _LARGEST:
                yield f"expected a number as {key} of round {t} in {METRICS}, got {value!r}"
    if there > wanted or (run.finished and there != wanted):
        finished = " of a finished run" if run.finished else ""
        yield f"expected {wanted} rounds{finished} in {METRICS}, got {there}"


def _summary(run: Recorded) -> Iterator[str]:
    given = run.summary
    assert given is not None  # of a finished run
    facts = given.get("environment")
    if not isinstance(facts, dict) or not all(isinstance(one, str) for one in facts.values()):
        yield f"expected versions and hardware as environment in {SUMMARY}, got {facts!r}"
    if type(given.get("workers")) is not int:
        yield f"expected a number of workers in {SUMMARY}, got {given.get('workers')!r}"
    try:
        told = metrics.summarise(run.config, run.rounds, 0, {})
    except (LookupError, TypeError, ValueError) as wrong:
        yield f"expected the figures of a round in every line of {METRICS}, got {wrong!r}"
        return
    for key in (key for key in told if key in given and key not in _NOT_OF_ROUNDS):
        if not _same(told[key], given[key]):
            yield f"expected {key} = {told[key]} in {SUMMARY}, as {METRICS} has it, got {given[key]}"


def _same(a: Any, b: Any) -> bool:
    """Sums of the same numbers may differ in the last digit between versions of Python."""
    numbers = {type(a), type(b)}
    if float in numbers and numbers <= {int, float}:
        return math.isclose(a, b, rel_tol=1e-9)
    return type(a) is type(b) and a == b


def _is_partition(given: Any, clients: int) -> bool:
    if not isinstance(given, dict) or not all(
        isinstance(given.get(key), list) for key in ("classes", "train")
    ):
        return False
    classes, rows = given["classes"], given["train"]
    return (
        all(isinstance(name, str) for name in classes)
        and len(rows) == clients
        and all(isinstance(row, list) and len(row) == len(classes) for row in rows)
        and all(type(count) is int and 0 <= count < _LARGEST for row in rows for count in row)
    )


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return flat
