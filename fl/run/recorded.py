"""A run as its directory has it (fl/run/rundir.py), finished or not: what reports are made from, and what a
run that goes on relies on. The files may come from somebody else: all is checked here, before it is used.

summary.json is made from metrics.jsonl, and made again here: it must say the same, and only what no line
holds is taken from it. Messages name files without the directory, which the user has named.
"""

import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fl import config
from fl.config import Config
from fl.errors import ConfigError, RunDirError
from fl.run import files, history, keys, metrics, stopping
from fl.run.files import shown
from fl.run.history import History
from fl.run.names import BASELINE, CLIENTS, CONFIG, EXACT, HISTORY, METRICS, PARTITION, SUMMARY
from fl.units import counted

Record = dict[str, Any]
_TEXTS = tuple(key.name for key in keys.RUN if key.unit == "text")  # of a summary; the rest are numbers
_NOTES = {key.name for key in keys.table("round") if key.unit == "text"}
_LARGEST = 1e150  # of such a number: means and deviations of these are numbers
_ACCURACY = ("accuracy_best", "accuracy_last5", "accuracy_last")
TWINS = {  # runs in a folder of this one's directory: the keys of their summary that its own repeats
    BASELINE: ("kernels", "wall_s", "train_s", "energy_j", "energy_net_j", *_ACCURACY),
    EXACT: ("values", "bytes_total", *_ACCURACY),
}


class Client(NamedTuple):
    """Test accuracy of a client in some round; None: it has no test samples."""

    client: int
    accuracy: float | None
    accuracy_before: float | None


@dataclass(frozen=True)
class Recorded:
    config: Config
    config_text: str
    rounds: list[Record]  # metrics.jsonl
    quartiles: dict[int, list[float]]  # {round: of the clients' accuracy}; empty without clients.jsonl
    last: list[Client]  # of the last round in clients.jsonl
    partition: Record | None
    summary: Record | None  # of the rounds so far; None before the first
    finished: bool
    history: History = field(default=())

    @property
    def x(self) -> list[int]:
        """Numbers of the rounds."""
        return [line["round"] for line in self.rounds]

    def column(self, key: str) -> list[Any]:
        """One key of metrics.jsonl, a number each, None where it is not."""
        for line in self.rounds:
            _number(line.get(key), f"{METRICS}, round {line['round']}, {key}")
        return [line.get(key) for line in self.rounds]

    def has(self, *keys: str) -> bool:
        return any(line.get(key) is not None for line in self.rounds for key in keys)

    def layers(self) -> dict[str, list[float | None]]:
        """Density of every layer, round by round; empty where it was not recorded."""
        told = [self._layers(line) for line in self.rounds]
        named = dict.fromkeys(name for one in told for name in one)
        return {name: [one.get(name) for one in told] for name in named}

    def _layers(self, line: Record) -> dict[str, float | None]:
        where, found = f"{METRICS}, round {line['round']}, layer_density", line.get("layer_density") or {}
        if not isinstance(found, dict):
            raise RunDirError(f"{where}: expected densities by name, got {shown(found)}")
        return {name: _number(value, f"{where}, {name[:40]}") for name, value in found.items()}


def read(path: Path | str, clients: bool = True) -> Recorded:
    """`clients=False`: without clients.jsonl, which may be long."""
    path = Path(path)
    try:
        cfg, text = config_of(path)
        rounds = rounds_of(path)
        told = clients and files.exists(path, CLIENTS)
        quartiles, last = by_round(files.each_line(path, CLIENTS)) if told else ({}, [])
        partition, parts = _partition(path), _history(path)
        _check_number(path, cfg, rounds)
        summary = _summary(path, cfg, rounds, parts) if rounds else None
    except OSError as wrong:
        raise RunDirError(f"cannot read the run in {path}: {wrong.strerror or wrong}") from wrong
    finished = files.exists(path, SUMMARY)
    return Recorded(cfg, text, rounds, quartiles, last, partition, summary, finished, parts)


def config_of(path: Path) -> tuple[Config, str]:
    """The configuration of the run in `path`, and its text. It is complete: nothing else is opened for it."""
    if not files.exists(path, CONFIG):
        raise RunDirError(f"expected the directory of a run, got {path}, which has no {CONFIG}")
    text = files.read_text(path, CONFIG)
    return parsed(text), text


def parsed(text: str) -> Config:
    """The configuration that a run wrote."""
    try:
        return config.loads(text)
    except tomllib.TOMLDecodeError as wrong:
        raise ConfigError(f"expected TOML, got {wrong}") from wrong
    except RecursionError:
        raise ConfigError("expected TOML of few levels, got values nested too deeply") from None


def rounds_of(path: Path, number: int | None = None) -> list[Record]:
    """The lines of metrics.jsonl, which are numbered from 0 on; the first `number` of them."""
    lines = [*islice(files.each_line(path, METRICS), number)] if files.exists(path, METRICS) else []
    for t, line in enumerate(lines):
        if type(line.get("round")) is not int or line["round"] != t:
            raise RunDirError(
                f"expected round {t} in line {t + 1} of {METRICS}, got {shown(line.get('round'))}"
            )
    _same_meaning(lines)
    for t, line in enumerate(lines):
        _check_figures(t, line)
    return lines


def _check_figures(t: int, line: Record) -> None:
    """What summaries, tables and figures are made from."""
    needed = {key.of for key in keys.sums() if not key.null}
    optional = {key.name for key in keys.table("round") if key.null and line.get(key.name) is not None}
    for key in _NOTES & optional:
        if not isinstance(line[key], str):
            raise RunDirError(f"expected text as {key} of round {t} in {METRICS}, got {shown(line[key])}")
    figures: Record = {key: line.get(key) for key in (needed | optional) - _NOTES}
    for key, value in figures.items():
        if type(value) not in (int, float) or not 0 <= value < _LARGEST:
            raise RunDirError(f"expected a number as {key} of round {t} in {METRICS}, got {shown(value)}")


def _check_number(path: Path, cfg: Config, rounds: list[Record]) -> None:
    """All of a finished run, which are fewer where it stopped early, and never more."""
    finished = files.exists(path, SUMMARY)
    there, wanted = len(rounds), stopping.length(cfg, rounds)
    if there > wanted or (finished and there != wanted):
        what = " of a finished run" if finished else ""
        early = ", after which it stops early," if wanted < cfg.num_rounds else ""
        raise RunDirError(f"expected {counted(wanted, 'round')}{what}{early} in {METRICS}, got {there}")


def _same_meaning(rounds: list[Record]) -> None:
    """In older versions accuracy_mean of a run with a server was over the sampled clients: another figure."""
    if any("sampled" in line and "accuracy_sampled" not in line for line in rounds):
        raise RunDirError(
            f"expected accuracies over all clients in {METRICS}, got those of sampled clients alone, "
            "as older versions wrote them: run it again"
        )


def summarised(
    cfg: Config,
    rounds: list[Record],
    path: str = "",
    workers: int = 0,
    environment: Mapping[str, str] = {},
) -> Record:
    """summary.json of these lines, without what only the run knows."""
    try:
        summary = metrics.summarise(cfg, rounds, path, workers, environment)
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, IndexError) as wrong:
        missing = f"no {wrong}" if isinstance(wrong, KeyError) else wrong
        raise RunDirError(
            f"expected the figures of a round in each line of {METRICS}, got {missing}"
        ) from wrong
    maybe = _nullable(cfg.algorithm)
    lists = {key.name for key in keys.sums(cfg.algorithm) if key.sums == "rounds"}
    for key in summary.keys() - {*_TEXTS, *lists, "environment", "stopped_early"}:
        if _number(summary[key], f"{METRICS}: {key}") is None and key not in maybe:
            raise RunDirError(f"{METRICS}: {key}: expected a number, got none")
    return summary


def _nullable(algorithm: str = "") -> set[str]:
    return {key.name for key in keys.table("run", algorithm) if key.null}


def twins(path: Path) -> dict[str, Record | None]:
    """What the finished runs beside the one in `path` say, by folder."""
    return {folder: _twin(path, folder) for folder in TWINS}


def _twin(path: Path, folder: str) -> Record | None:
    if not (files.is_folder(path / folder) and files.exists(path / folder, SUMMARY)):
        return None
    other = read(path / folder, clients=False).summary
    return None if other is None else {key: other[key] for key in TWINS[folder]}


def _summary(path: Path, cfg: Config, rounds: list[Record], parts: History) -> Record:
    """Made again from the lines, with what only the run knew."""
    last = parts[-1] if parts else None
    told: Any = {"workers": last.workers if last else 0, "environment": last.environment if last else {}}
    told["path"] = history.path_of(parts)
    if files.exists(path, SUMMARY):
        told = files.read_json(path, SUMMARY)
    if not isinstance(told, dict):
        raise RunDirError(f"expected an object of JSON in {SUMMARY}, got {shown(told)}")
    history.check_facts(told.get("environment"), f"{SUMMARY}: environment")
    if type(told.get("workers")) is not int or told["workers"] < 0:
        raise RunDirError(f"expected a number of workers in {SUMMARY}, got {shown(told.get('workers'))}")
    path = told.get("path", "")  # older versions did not say
    if not isinstance(path, str):
        raise RunDirError(f"expected text as path in {SUMMARY}, got {shown(path)}")
    mixed = history.check_mixed(told.get("mixed", history.mixed(parts)), f"{SUMMARY}: mixed")
    own = summarised(cfg, rounds, path, told["workers"], told["environment"])
    for key in (key for key in own if key in told):
        if not _same(own[key], told[key]):
            raise RunDirError(
                f"expected {key} = {own[key]} in {SUMMARY}, as {METRICS} has it, got {shown(told[key])}"
            )
    return own | {"mixed": mixed} | {folder: _told(folder, told.get(folder)) for folder in TWINS}


def _same(a: Any, b: Any) -> bool:
    """Sums of the same numbers may differ in the last digit between versions of Python."""
    numbers = {type(a), type(b)}
    if float in numbers and numbers <= {int, float}:
        return math.isclose(a, b, rel_tol=1e-9)
    return type(a) is type(b) and a == b


def _told(folder: str, told: Any) -> Record | None:
    """What summary.json says of a run beside this one."""
    if told is None:
        return None
    where, wanted = f"{SUMMARY}: {folder}", dict.fromkeys(TWINS[folder])
    if not isinstance(told, dict) or not set(wanted) - _nullable() <= set(told) <= set(wanted):
        raise RunDirError(f"{where}: expected the keys {list(wanted)}, got {shown(told)}")
    told = wanted | told  # older versions measured no joules
    for key, value in told.items():
        if key in _TEXTS and not isinstance(value, str):
            raise RunDirError(f"{where}: {key}: expected text, got {shown(value)}")
        if key not in _TEXTS and _number(value, f"{where}: {key}") is None and key not in _nullable():
            raise RunDirError(f"{where}: {key}: expected a number, got none")
    return told


def _history(path: Path) -> History:
    if not files.exists(path, HISTORY):
        return ()
    try:
        return history.from_json(files.read_json(path, HISTORY))
    except RunDirError as wrong:
        raise RunDirError(f"{HISTORY}: {wrong}") from wrong


def _partition(path: Path) -> Record | None:
    """{"classes": names, "train": counts [client][class], "test": the same}."""
    if not files.exists(path, PARTITION):
        return None
    match files.read_json(path, PARTITION):
        case {"classes": list(names), "train": list(train), "test": list(test)} as told:
            rows = all(_is_counts(row, len(names)) for row in (*train, *test))
            if rows and all(isinstance(name, str) for name in names) and names:
                return told
    raise RunDirError(f"expected names of classes and counts of samples in {PARTITION}, got others")


def _is_counts(row: Any, length: int) -> bool:
    return isinstance(row, list) and len(row) == length and all(type(n) is int and n >= 0 for n in row)


def by_round(lines: Iterable[Record]) -> tuple[dict[int, list[float]], list[Client]]:
    """One round at a time: with many clients the file is long."""
    quartiles: dict[int, list[float]] = {}
    last: list[Client] = []
    for t, group in groupby(lines, key=lambda line: _whole(line, "round")):
        last = [_client(line) for line in group]
        tested = [one.accuracy for one in last if one.accuracy is not None]
        if tested:
            quartiles[t] = np.quantile(tested, [0.25, 0.5, 0.75]).tolist()
    return quartiles, last


def _client(line: Record) -> Client:
    before, after = (
        _number(line.get(key), f"{CLIENTS}, round {line['round']}, {key}")
        for key in ("accuracy_before", "accuracy")
    )
    return Client(_whole(line, "client"), after, before)


def _whole(line: Record, key: str) -> int:
    if type(line.get(key)) is not int or not 0 <= line[key] < 1 << 31:
        raise RunDirError(f"{CLIENTS}: {key}: expected a number from 0 on, got {shown(line.get(key))}")
    return line[key]


def _number(value: Any, where: str) -> Any:
    if value is not None and not isinstance(value, int | float):
        raise RunDirError(f"{where}: expected a number, got {shown(value)}")
    return value
