"""What a run says while it runs: bars on a terminal, lines elsewhere; a table at the end."""

from collections.abc import Mapping
from pathlib import Path
from time import perf_counter

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from fl.cli.exits import say
from fl.config import Config
from fl.keys import Key
from fl.report.summary import SUMMARY_COLUMNS, describe, how_long, summary_rows
from fl.run import keys
from fl.run.events import Listener, Record
from fl.run.meters import energy
from fl.run.pace import Pace
from fl.units import duration, percent, quantity, size

_EVERY_S = 30.0  # between two lines within a round
_REDRAWN_S = 0.1  # between two looks of a bar: not for each of many thousand clients


class Lines(Listener):
    """One line per round, and one every 30 seconds in a longer one; for logs and pipes."""

    every_s = _EVERY_S

    def __init__(self, console: Console) -> None:
        self.console, self.pace = console, Pace()

    def run_started(self, config: Config, path: Path | None, first: int) -> None:
        self.rounds, self.first, self.began = config.num_rounds, first, perf_counter()
        self.num_clients, self.round = config.num_clients, -1  # -1: clients are made
        self.pace.round_started(config.num_clients)
        self._print(_title(config, path) + (f", from round {first}" if first else ""))

    def path_chosen(self, path: str) -> None:
        self._print(_trained(path))

    def meters_chosen(self, facts: Mapping[str, str]) -> None:
        for fact, what in facts.items():
            self._print(f"{fact}: {what}")

    def round_started(self, t: int) -> None:
        self.round = t
        self.pace.round_started(self.num_clients)

    def clients_present(self, clients: int) -> None:
        self.pace.round_started(clients)

    def wave_started(self, clients: int) -> None:
        self.pace.wave_started(clients)

    def client_finished(self, k: int) -> None:
        if self.pace.client_done(self.every_s):
            done = f"{self.pace.done:,} of {self.pace.total:,} clients"
            self._progress(f"{self._place(self.round)}  {done}  {self.pace.text()}")

    def round_finished(self, record: Record) -> None:
        self._print(self._line(record))

    def _line(self, record: Record) -> str:
        done, left = record["round"] + 1, self.rounds - record["round"] - 1
        eta = (perf_counter() - self.began) / (done - self.first) * left
        return f"{self._place(record['round'])}  {figures(record)}  left {duration(eta)}"

    def _place(self, t: int) -> str:
        return "before the rounds" if t < 0 else f"round {t:>4}/{self.rounds - 1}"

    def _progress(self, text: str) -> None:
        self._print(text)

    def note(self, text: str) -> None:
        self._print(text)

    def _print(self, text: str) -> None:
        say(self.console, text)


class Bars(Listener):
    """A bar for the rounds and one for the clients of a round, for terminals."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.progress = bars(console, TimeElapsedColumn(), TimeRemainingColumn())

    def run_started(self, config: Config, path: Path | None, first: int) -> None:
        say(self.console, _title(config, path))
        self.rounds = self.progress.add_task("rounds", total=config.num_rounds, completed=first, figures="")
        self.clients = self.progress.add_task("clients", total=config.num_clients, figures="")
        self.num_clients, self.pace = config.num_clients, Pace()
        self.pace.round_started(config.num_clients)
        self.progress.start()

    def path_chosen(self, path: str) -> None:
        say(self.progress.console, _trained(path))

    def meters_chosen(self, facts: Mapping[str, str]) -> None:
        for fact, what in facts.items():
            say(self.progress.console, f"{fact}: {what}")

    def round_started(self, t: int) -> None:
        self.pace.round_started(self.num_clients)
        self.progress.reset(self.clients, description=f"round {t}", total=self.num_clients)

    def clients_present(self, clients: int) -> None:
        self.pace.round_started(clients)
        self._redraw()

    def wave_started(self, clients: int) -> None:
        self.pace.wave_started(clients)
        self._redraw()

    def client_finished(self, k: int) -> None:
        if self.pace.client_done(_REDRAWN_S):
            self._redraw()

    def round_finished(self, record: Record) -> None:
        self._redraw()
        self.progress.update(self.rounds, advance=1, figures=figures(record))

    def _redraw(self) -> None:
        pace = self.pace
        self.progress.update(self.clients, total=pace.total, completed=pace.done, figures=pace.text())

    def note(self, text: str) -> None:
        say(self.progress.console, text)

    def run_stopped(self) -> None:
        self.progress.stop()


def bars(console: Console, *columns: ProgressColumn) -> Progress:
    """Bars with a name, how many of how many, `columns`, and the field `figures`."""
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        *columns,
        TextColumn("{task.fields[figures]}", markup=False),
        console=console,
        transient=True,
    )


def for_console(console: Console) -> Listener:
    """Bars on a terminal, an output that changes in a notebook, lines elsewhere."""
    if console.is_jupyter:
        from fl.cli.notebook import Cell  # which needs this module

        return Cell(console)
    return Bars(console) if console.is_terminal else Lines(console)


def summary_table(summary: Record) -> Table:
    """What a run gave and what it cost, for a terminal."""
    table = Table(
        title=Text(f"{summary['name']}: {summary['algorithm']}, {how_long(summary)}"),
        title_justify="left",
    )
    for i, name in enumerate(SUMMARY_COLUMNS):
        table.add_column(name, justify="right" if i else "left")
    for row in summary_rows(summary):
        table.add_row(*map(Text, row))
    return table


def _title(config: Config, path: Path | None) -> str:
    where = "" if path is None else f", in {path}"
    return f"{config.name}: {describe(config)}{where}"


def _trained(path: str) -> str:
    return f"clients train as {path}"


def figures(record: Record) -> str:
    """The main ones of a line of metrics.jsonl."""
    parts = [
        f"accuracy {percent(record['accuracy_mean'])}",
        f"density {record['density_mean']:.3f}",
        f"sent {size(record['bytes_total'])}",
        f"{record['wall_s']:.1f} s",
    ]
    if record.get("present") is not None:
        parts.insert(0, f"present {record['present']:,}")
    if "energy_j" in record:
        parts.append(_joules(record))
    parts[2:2] = [key.shown.format(record[key.name]) for key in keys.progress() if _told(key, record)]
    if record.get("accuracy_global") is not None:
        parts.insert(1, f"server's model {percent(record['accuracy_global'])}")
    return "  ".join(parts)


def _joules(record: Record) -> str:
    """Measured ones; of a round that has none, why: no meter, or what it read cannot be trusted."""
    if record["energy_j"] is None:
        return "joules unknown" if record.get("energy_note") else energy.NONE
    return quantity(record["energy_j"], "J")


def _told(key: Key, record: Record) -> bool:
    """Whether a line of progress has it: not where it is null, or a count of 0."""
    value = record.get(key.name)
    return value is not None and not (isinstance(value, int) and value == 0)
