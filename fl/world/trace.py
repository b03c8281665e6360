"""Traces of devices: one line per client, as CSV.

    client,speed,bandwidth,hours_online,period_hours
    0,1.0,20e6,0-6.5;22-24,24
    1,0.25,5e6,always,24

    client          its number, from 0; each once, in any order. Those beyond the run are not used
    speed           of its training against the device of the section `devices`: 2 is twice as fast
    bandwidth       bits per second of its link
    hours_online    always, never, or intervals begin-end in hours, in order and apart, ; between them. It is
                    online from begin on, and no more at end
    period_hours    after so many hours the intervals begin anew; 24 where there is no such column

The first line names the columns, in any order. Those that nobody asks for may be missing. Blank lines and
lines that begin with # are skipped. Errors name file and line.
"""

import csv
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fl.errors import ConfigError

Floats = NDArray[np.float64]
COLUMNS = ("client", "speed", "bandwidth", "hours_online", "period_hours")
DAY = 24.0
_MOST = 1e18
_LETTERS = 1 << 24  # of a field


class Online(NamedTuple):
    """Intervals of all clients, one after the other: whose, from and to which hour; and all periods."""

    client: NDArray[np.int64]
    begin: Floats
    end: Floats
    period: Floats

    def at(self, hour: float) -> NDArray[np.bool_]:
        """Who is online at that hour."""
        now = (hour % self.period)[self.client]
        there = (self.begin <= now) & (now < self.end)
        return np.bincount(self.client[there], minlength=len(self.period)) > 0


class Trace(NamedTuple):
    """What a file says of clients 0, 1, ...; None: it has no such column."""

    file: str
    speed: Floats | None
    bandwidth: Floats | None
    online: Online | None


def read(file: str | Path, num_clients: int) -> Trace:
    """The trace of these clients; a file is read again only when it has changed. ConfigError: it is wrong."""
    path = Path(file)
    try:
        about = path.stat()
        return _read(str(path), about.st_mtime_ns, about.st_size, num_clients)
    except OSError as wrong:
        raise ConfigError(f"expected a trace of devices, got {file}: {wrong.strerror or wrong}") from wrong


@lru_cache(maxsize=4)
def _read(file: str, changed_ns: int, size: int, num_clients: int) -> Trace:
    csv.field_size_limit(_LETTERS)
    with open(file, newline="", encoding="utf-8-sig") as lines:
        try:
            rows = _rows(file, lines)
            _, columns = next(rows, (0, None))
            if columns is None:
                raise ConfigError(f"{file}: expected a line with the names of columns, got none")
            _check_columns(file, columns)
            return _trace(file, columns, rows, num_clients)
        except (UnicodeDecodeError, csv.Error) as wrong:
            raise ConfigError(f"{file}: expected a trace of devices as CSV, got {wrong}") from wrong


def _rows(file: str, lines: Any) -> Iterator[tuple[int, list[str]]]:
    """Lines with their numbers."""
    reader = csv.reader(lines)
    for row in reader:
        cells = [cell.strip() for cell in row]
        if any(cells) and not cells[0].startswith("#"):
            yield reader.line_num, cells


def _check_columns(file: str, columns: list[str]) -> None:
    wrong = [name for name in columns if name not in COLUMNS]
    if wrong or "client" not in columns or len(set(columns)) < len(columns):
        raise ConfigError(
            f"{file}, line 1: expected client and others out of {list(COLUMNS)}, each once, got {columns}"
        )


def _trace(file: str, columns: list[str], rows: Iterator[tuple[int, list[str]]], num_clients: int) -> Trace:
    numbers = {name: np.full(num_clients, np.nan) for name in ("speed", "bandwidth") if name in columns}
    period, lines = np.full(num_clients, DAY), np.zeros(num_clients, np.int64)
    intervals: dict[int, list[tuple[float, float]]] = {}
    for line, cells in rows:
        at = f"{file}, line {line}"
        if len(cells) != len(columns):
            raise ConfigError(f"{at}: expected {len(columns)} values, got {len(cells)}")
        given = dict(zip(columns, cells, strict=True))
        k = _client(at, given["client"])
        if k >= num_clients:
            continue
        if lines[k]:
            raise ConfigError(f"{at}: expected client {k} once, got it in line {lines[k]} too")
        lines[k] = line
        for name, column in numbers.items():
            column[k] = _number(at, name, given[name])
        if "period_hours" in given:
            period[k] = _number(at, "period_hours", given["period_hours"])
        if "hours_online" in given:
            intervals[k] = _intervals(at, given["hours_online"], float(period[k]))
    missing = np.flatnonzero(lines == 0)
    if missing.size:
        raise ConfigError(
            f"{file}: expected a line for each of {num_clients} clients, got none for {missing[0]}"
        )
    return Trace(
        file,
        numbers.get("speed"),
        numbers.get("bandwidth"),
        _online(intervals, period) if "hours_online" in columns else None,
    )


def _online(intervals: dict[int, list[tuple[float, float]]], period: Floats) -> Online:
    flat = [(k, *one) for k in sorted(intervals) for one in intervals[k]]
    table = np.array(flat, np.float64).reshape(-1, 3)
    return Online(table[:, 0].astype(np.int64), table[:, 1].copy(), table[:, 2].copy(), period)


def _client(at: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise ConfigError(f"{at}: expected the number of a client, from 0, got {text[:40]!r}")
    return int(text)


def _number(at: str, name: str, text: str) -> float:
    value = _float(text)
    if value is None or not 0 < value <= _MOST:
        raise ConfigError(f"{at}: expected {name} above 0, up to {_MOST:g}, got {text[:40]!r}")
    return value


def _intervals(at: str, text: str, period: float) -> list[tuple[float, float]]:
    """In hours.

    >>> _intervals("a.csv, line 2", "0-6.5; 22-24", 24.0)
    [(0.0, 6.5), (22.0, 24.0)]
    """
    if text in ("always", "never"):
        return [(0.0, inf)] if text == "always" else []
    parts = [part.partition("-") for part in text.split(";")]
    found = [(_float(begin), _float(end)) for begin, _, end in parts]
    whole = [(begin, end) for begin, end in found if begin is not None and end is not None]
    edges = [hour for one in whole for hour in one]
    ordered = all(a <= b for a, b in pairwise(edges)) and all(a < b for a, b in whole)
    if len(whole) < len(found) or not ordered or edges[0] < 0 or edges[-1] > period:
        raise ConfigError(
            f"{at}: expected hours_online as always, never, or begin-end;begin-end in order, from 0 to "
            f"{period:g}, got {text[:60]!r}"
        )
    return whole


def _float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
