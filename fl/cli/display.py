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
from fl.units import duration, percent, quantity, size


class Lines(Listener):
    """One line per round, for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def run_started(self, config: Config, path: Path | None, first: int) -> None:
        self.rounds, self.first, self.began = config.num_rounds, first, perf_counter()
        self._print(_title(config, path) + (f", from round {first}" if first else ""))

    def path_chosen(self, path: str) -> None:
        self._print(_trained(path))

    def meters_chosen(self, facts: Mapping[str, str]) -> None:
        for fact, what in facts.items():
            self._print(f"{fact}: {what}")

    def round_finished(self, record: Record) -> None:
        done, left = record["round"] + 1, self.rounds - record["round"] - 1
        eta = (perf_counter() - self.began) / (done - self.first) * left
        self._print(f"round {record['round']:>4}/{self.rounds - 1}  {figures(record)}  left {duration(eta)}")

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
        self.num_clients, self.wave, self.asked = config.num_clients, 0, 0
        self.progress.start()

    def path_chosen(self, path: str) -> None:
        say(self.progress.console, _trained(path))

    def meters_chosen(self, facts: Mapping[str, str]) -> None:
        for fact, what in facts.items():
            say(self.progress.console, f"{fact}: {what}")

    def round_started(self, t: int) -> None:
        self.wave, self.asked = 0, 0
        self.progress.reset(self.clients, description=f"round {t}")

    def wave_started(self, clients: int) -> None:
        self.wave, self.asked = self.wave + 1, self.asked + clients
        total = max(self.num_clients, self.asked)  # more where clients are asked twice: to train, to test
        self.progress.update(self.clients, total=total, figures=f"wave {self.wave}, {clients} clients")

    def client_finished(self, k: int) -> None:
        self.progress.advance(self.clients)

    def round_finished(self, record: Record) -> None:
        self.progress.update(self.rounds, advance=1, figures=figures(record))

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
