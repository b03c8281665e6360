"""`sparsefl simulate`: the schedule alone, for any number of clients and no training.

For every degree M and bound N, over rounds with a fresh reuse index (and, by default, fresh neighbours): the
share of clients that start at once, the depth, how long clients wait, and time and energy of a round. Depth
and parallelism are facts of the schedule; seconds and joules come from the device model and are labelled so.
All N share the rounds of their M. N > M is skipped because it equals N = M.
"""

import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from math import inf, nan
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from rich.table import Table

from fl.config import Devices, Presence
from fl.errors import ConfigError
from fl.rng import stream
from fl.simulate.world import comes_and_goes
from fl.units import quantity
from fl.world import presence, topology
from fl.world.clock import MESSAGES, Clock, received
from fl.world.presence import Attendance
from fl.world.schedule import REUSE_RULES, WAIT_RULES, reuse_index
from fl.world.topology import Topology

MODELLED = "time, energy and waiting are modelled from constants of the device model, not measured"
_LINKS = 4_000_000  # to plan a setting, unless the user says how many rounds: a few seconds


class Workload(NamedTuple):
    """A client-round of the paper: 5 epochs at ERK density 0.5, and one dense batch of 128 to grow by."""

    forward_flop: int  # per sample
    samples: int
    weights: int  # prunable
    rest: int  # other parameters
    sparse_share: float  # FLOP of a sparse step over a dense one

    def flop(self, dense: bool) -> float:
        trained = 5 * self.samples * 3 * self.forward_flop
        return trained if dense else self.sparse_share * trained + 128 * 3 * self.forward_flop

    def message_bytes(self, dense: bool) -> float:
        """fp32 values; sparse: half of the weights, and a bit per weight that says which."""
        return 4 * self.rest + (4 * self.weights if dense else 2 * self.weights + self.weights / 8)


WORKLOADS = {
    "resnet18": Workload(1_110_845_450, 499, 10_992_320, 181_642, 0.801),
    "vgg11": Workload(305_782_884, 499, 9_268_928, 8_356, 0.701),
    "alexnet": Workload(376_020_999, 640, 23_250_624, 9_351, 0.668),
}


@dataclass(frozen=True)
class Settings:
    """What to simulate. `max_waits`: None is all priors, N = M. `rounds` None: as many as take seconds."""

    clients: int = 100
    degrees: tuple[int, ...] = (10,)
    max_waits: tuple[int | None, ...] = (None,)
    topology: str = "random"
    edges: str | None = None
    redraw: bool | None = None
    reuse: str = "random"
    wait_rule: str = "fastest"
    rounds: int | None = None
    model: Devices = Devices()
    presence: Presence = Presence()
    flop: float = WORKLOADS["resnet18"].flop(dense=False)
    message_bytes: float = WORKLOADS["resnet18"].message_bytes(dense=False)
    messages: str = "after"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.rounds is not None and self.rounds < 1:
            raise ConfigError(f"expected at least 1 round, got {self.rounds}")
        if not self.degrees or not self.max_waits:
            raise ConfigError(f"expected a degree and a max_wait, got {self.degrees} and {self.max_waits}")
        if not all(0 <= size < inf for size in (self.flop, self.message_bytes)):
            raise ConfigError(
                f"expected flop and message_bytes >= 0, got {self.flop} and {self.message_bytes}"
            )
        if any(n is not None and n < 0 for n in self.max_waits):
            raise ConfigError(
                f"expected max_wait >= 0, got {min(n for n in self.max_waits if n is not None)}"
            )
        known("a reuse index", self.reuse, REUSE_RULES)
        known("a wait rule", self.wait_rule, WAIT_RULES)
        known("messages", self.messages, MESSAGES)

    def max_waits_of(self, degree: int) -> tuple[int | None, ...]:
        """Return the bounds that make a difference at this degree; those asked for if none does."""
        return tuple(n for n in self.max_waits if n is None or n <= degree) or self.max_waits

    def topologies(self) -> list[Topology]:
        """One per degree; one at all where the kind has its own. A graph that cannot be is a ConfigError."""
        try:
            return self._topologies()
        except ValueError as wrong:
            raise ConfigError(str(wrong)) from wrong

    def _topologies(self) -> list[Topology]:
        sweeps = self.topology in ("random", "regular")
        return [
            topology.make(
                self.topology,
                self.clients,
                degree=degree,
                seed=self.seed,
                redraw=self.redraw,
                edges=self.edges,
            )
            for degree in (self.degrees if sweeps else self.degrees[:1])
        ]


class Mean(NamedTuple):
    """Over rounds, with its standard error (not a number for one round)."""

    mean: float
    error: float

    @classmethod
    def of(cls, values: NDArray[Any]) -> "Mean":
        error = np.std(values, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else nan
        return cls(float(np.mean(values)), float(error))


@dataclass(frozen=True)
class Row:
    """One setting. `max_wait` None: all priors. `wave_shares`: of the clients that are there, in wave 0, 1,
    ... `present`: their number, mean over rounds; None: everybody, always. Rounds without anybody are counted
    in `rounds` and in `present` alone."""

    degree: float
    max_wait: int | None
    rounds: int
    parallelism: Mean
    depth: Mean
    waiting_s: Mean
    time_s: Mean
    energy_j: Mean
    wave_shares: list[float]
    present: float | None = None


_FIGURES = ("parallelism", "depth", "waiting_s", "time_s", "energy_j")


def simulate(settings: Settings) -> Iterator[Row]:
    """A row for every M and N, in this order."""
    for graph in settings.topologies():
        yield from _rows(settings, graph)


def _rows(settings: Settings, graph: Topology) -> list[Row]:
    first = graph.neighbours(0)
    rounds = settings.rounds or int(np.clip(_LINKS // max(len(first.indices), 1), 1, 200))
    waits = settings.max_waits_of(int(first.degrees.max()))
    crowd = presence.make(settings.presence, settings.clients, settings.seed)
    there = [crowd.at(t) for t in range(rounds)]
    present = [len(one.present(settings.clients)) for one in there]
    if not any(present):
        raise ConfigError(f"expected a client that is there in some of {rounds} rounds, got none")
    seen: dict[int | None, list[tuple[float, ...]]] = {n: [] for n in waits}
    waves = {n: np.zeros(1) for n in waits}
    for t in [t for t in range(rounds) if present[t]]:
        for n, figures, counts in _round(settings, graph, waits, t, there[t]):
            seen[n].append(figures)
            waves[n] = _sum(waves[n], counts)
    degree, everybody = float(first.degrees.mean()), sum(present)
    found = [_row(degree, n, np.array(seen[n]), waves[n] / everybody) for n in waits]
    if settings.presence.kind == "always":
        return found
    return [replace(row, rounds=rounds, present=everybody / rounds) for row in found]


def _row(degree: float, max_wait: int | None, seen: NDArray[Any], shares: NDArray[Any]) -> Row:
    """`seen`: [rounds, figures of a Row in their order]."""
    figures = {name: Mean.of(seen[:, i]) for i, name in enumerate(_FIGURES)}
    return Row(degree, max_wait, len(seen), **figures, wave_shares=shares.tolist(), present=None)


def _round(
    settings: Settings, graph: Topology, waits: tuple[int | None, ...], t: int, there: Attendance
) -> Iterator[tuple[int | None, tuple[float, ...], NDArray[np.int64]]]:
    """Round t for every N: the figures of a Row, and the number of clients in every wave; of those that are
    there."""
    neighbours, present = there.live(graph.neighbours(t)), there.present(settings.clients)
    reuse = reuse_index(settings.clients, settings.reuse, stream(settings.seed, "reuse", t))
    clock = Clock.of(settings.model, settings.clients, settings.seed, t, settings.messages)
    flop = np.zeros(settings.clients)
    flop[present] = settings.flop
    clock = replace(clock, absent=settings.clients - len(present))
    taken = received(neighbours, settings.message_bytes)
    for n in waits:
        planned = clock.plan(
            neighbours,
            reuse,
            int(neighbours.degrees.max()) if n is None else n,
            flop=flop,
            message_bytes=settings.message_bytes,
            wait_rule=settings.wait_rule,
        )
        cost = clock.cost(planned, flop=flop, received=taken)
        at_once, waiting = (planned.wait.degrees[present] == 0).mean(), planned.start[present].mean()
        figures = (at_once, planned.depth, waiting, cost.time_s, cost.energy_j)
        yield n, figures, np.bincount(planned.wave[present])


def _sum(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    total = np.zeros(max(len(a), len(b)))
    total[: len(a)] += a
    total[: len(b)] += b
    return total


def run(settings: Settings, console: Console, plot: Path | None = None, file: Path | None = None) -> None:
    """Simulates, prints the table, writes what was asked for."""
    for path in (plot, file):
        if path is not None and not path.absolute().parent.is_dir():
            raise ConfigError(f"expected a file in an existing directory, got {path}")
    begin = perf_counter()
    graphs = settings.topologies()
    rows = [
        row
        for graph in track(
            graphs, "planning", console=console, transient=True, disable=not console.is_terminal
        )
        for row in _rows(settings, graph)
    ]
    console.print(table(settings, rows))
    console.print(f"{MODELLED}. Planned in {perf_counter() - begin:.1f} s.", highlight=False)
    if file is not None:
        file.write_text(json.dumps(record(settings, rows), indent=1, allow_nan=False) + "\n")
    if plot is not None:
        from fl.simulate.page import page

        plot.write_text(page(settings, rows), encoding="utf-8")
    for path in (plot, file):
        if path is not None:
            console.print(f"wrote {path}", highlight=False, soft_wrap=True)


def describe(settings: Settings) -> str:
    """The settings that all rows share, in a line."""
    model = settings.model
    spread = f" (spread {model.spread:g})" if model.kind in ("uniform", "lognormal") else ""
    redraw = {None: "", True: ", redrawn", False: ", static"}[settings.redraw]
    hardware = "" if model.hardware is None else f" {model.hardware}"
    return (
        f"{settings.clients:,} clients, {settings.topology}{redraw}, reuse index {settings.reuse}, "
        f"waiting for the {'fastest' if settings.wait_rule == 'fastest' else 'smallest index'}; "
        f"{model.kind}{hardware} devices{spread}{comes_and_goes(settings.presence)}, "
        f"{quantity(settings.flop, 'FLOP')} per training, "
        f"{quantity(settings.message_bytes, 'B')} per message, messages {settings.messages} training"
    )


def table(settings: Settings, rows: list[Row]) -> Table:
    shown = Table(title=describe(settings))
    for name in ("neighbours\n(M)", "waits for\n(N)", "rounds", "start at once", "depth"):
        shown.add_column(name, justify="right")
    for name in ("mean waiting", "time per round", "energy per round"):
        shown.add_column(f"{name}\n(modelled)", justify="right")
    for row in rows:
        shown.add_row(
            f"{row.degree:g}",
            "all" if row.max_wait is None else str(row.max_wait),
            str(row.rounds),
            with_error(row.parallelism, 4),
            with_error(row.depth, 2),
            quantity(row.waiting_s.mean, "s"),
            quantity(row.time_s.mean, "s"),
            quantity(row.energy_j.mean, "J"),
        )
    return shown


def record(settings: Settings, rows: list[Row]) -> dict[str, Any]:
    """For JSON. An unknown standard error is null."""
    return {
        "note": MODELLED,
        "settings": _settings(settings),
        "rows": [
            {"degree": row.degree, "max_wait": row.max_wait, "rounds": row.rounds}
            | {name: getattr(row, name).mean for name in _FIGURES}
            | {f"{name}_error": _known(getattr(row, name).error) for name in _FIGURES}
            | {"wave_shares": row.wave_shares}
            | ({} if row.present is None else {"present": row.present})
            for row in rows
        ],
    }


def _settings(settings: Settings) -> dict[str, Any]:
    """Without a presence where everybody is there."""
    told = asdict(settings) | {"model": settings.model.model_dump()}
    there = told.pop("presence")
    return told if there.kind == "always" else told | {"presence": there.model_dump()}


def _known(error: float) -> float | None:
    return None if np.isnan(error) else error


def with_error(value: Mean, digits: int) -> str:
    shown = f"{value.mean:.{digits}f}"
    return shown if np.isnan(value.error) else f"{shown} ± {value.error:.{digits}f}"


def known(what: str, word: str, words: Iterable[str]) -> None:
    """Refuses a word that is none of `words`."""
    if word not in words:
        raise ConfigError(f"expected {what} out of {list(words)}, got {word!r}")


def workload(name: str) -> Workload:
    known("a workload", name, WORKLOADS)
    return WORKLOADS[name]


def numbers(name: str, text: str) -> tuple[int, ...]:
    """The numbers of "1,2,5"."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as wrong:
        raise ConfigError(f"expected {name} as numbers with commas between, got {text!r}") from wrong


def numbers_or_all(name: str, text: str) -> tuple[int | None, ...]:
    """Return the numbers of "1,2,all", with None for "all"."""
    parts = [part.strip() for part in text.split(",")]
    return tuple(None if part == "all" else numbers(name, part)[0] for part in parts)


def console() -> Console:
    """Return a console as wide as the terminal, or wide enough for the table if there is none."""
    return Console() if sys.stdout.isatty() else Console(width=120)
