"""A run as its directory has it (fl/rundir.py), finished or not: what reports are made from."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fl import config, metrics
from fl.config import Config
from fl.rundir import CLIENTS, CONFIG, METRICS, PARTITION, SUMMARY, RunDirError, each_jsonl

Record = dict[str, Any]
_WRONG = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)  # of bad files


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

    @property
    def x(self) -> list[int]:
        """Numbers of the rounds."""
        return [line["round"] for line in self.rounds]

    def column(self, key: str) -> list[Any]:
        """One key of metrics.jsonl, None where it is not."""
        return [line.get(key) for line in self.rounds]

    def has(self, *keys: str) -> bool:
        return any(line.get(key) is not None for line in self.rounds for key in keys)


def read(path: Path | str, clients: bool = True) -> Recorded:
    """`clients=False`: without clients.jsonl, which may be long."""
    path = Path(path)
    if not (path / CONFIG).is_file():
        raise RunDirError(f"expected the directory of a run, got {path}, which has no {CONFIG}")
    cfg = config.load(path / CONFIG)
    try:
        rounds = [_record(line) for line in each_jsonl(path / METRICS)] if (path / METRICS).exists() else []
        _same_meaning(path, rounds)
        told = clients and (path / CLIENTS).exists()
        quartiles, last = _clients(each_jsonl(path / CLIENTS)) if told else ({}, [])
        partition, summary = _json(path / PARTITION), _json(path / SUMMARY)
        finished = summary is not None
        if not finished and rounds:
            summary = metrics.summarise(cfg, rounds, 0, {})
        text = (path / CONFIG).read_text()
    except (OSError, *_WRONG) as wrong:
        raise RunDirError(f"expected the files of a run in {path}, got {wrong!r}") from wrong
    return Recorded(cfg, text, rounds, quartiles, last, partition, summary, finished)


def _same_meaning(path: Path, rounds: list[Record]) -> None:
    """In older versions accuracy_mean of a run with a server was over the sampled clients: another figure."""
    if any("sampled" in line and "accuracy_sampled" not in line for line in rounds):
        raise RunDirError(
            f"expected accuracies over all clients in {path / METRICS}, got those of sampled clients alone, "
            "as older versions wrote them: run it again"
        )


def _json(path: Path) -> Record | None:
    return _record(json.loads(path.read_text())) if path.exists() else None


def _record(value: Any) -> Record:
    if not isinstance(value, dict):
        raise ValueError(f"expected an object of JSON, got {str(value)[:60]}")
    return value


def _clients(lines: Iterable[Record]) -> tuple[dict[int, list[float]], list[Client]]:
    """One round at a time: with many clients the file is long."""
    quartiles: dict[int, list[float]] = {}
    last: list[Client] = []
    for t, group in groupby(lines, key=lambda line: line["round"]):
        last = [Client(line["client"], line["accuracy"], line["accuracy_before"]) for line in group]
        tested = [one.accuracy for one in last if one.accuracy is not None]
        if tested:
            quartiles[t] = np.quantile(tested, [0.25, 0.5, 0.75]).tolist()
    return quartiles, last
