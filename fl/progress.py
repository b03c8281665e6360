"""What a run says while it runs: bars on a terminal, lines elsewhere, TensorBoard; a table at the end.

A Listener hears of rounds from the loop's thread, and of waves and clients from others.
"""

from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any

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

from fl import files
from fl.config import Config
from fl.errors import Missing
from fl.exits import say
from fl.names import TENSORBOARD

Record = dict[str, Any]
Row = tuple[str, str, str, str]
SUMMARY_COLUMNS = ("", "this run", "dense", "dense / this")


class Listener:
    """Hears everything, does nothing."""

    def run_started(self, config: Config, path: Path, first: int) -> None:
        """Round `first` comes next."""

    def round_started(self, t: int) -> None: ...

    def wave_started(self, clients: int) -> None: ...

    def client_finished(self, k: int) -> None: ...

    def round_finished(self, record: Record) -> None: ...

    def note(self, text: str) -> None:
        """Something that the user should know."""

    def run_stopped(self) -> None:
        """Finished, failed or interrupted."""


class Several(Listener):
    """Hands everything on to each."""

    def __init__(self, listeners: Iterable[Listener]) -> None:
        self.listeners = [*listeners]

    def run_started(self, config: Config, path: Path, first: int) -> None:
        for one in self.listeners:
            one.run_started(config, path, first)

    def round_started(self, t: int) -> None:
        for one in self.listeners:
            one.round_started(t)

    def wave_started(self, clients: int) -> None:
        for one in self.listeners:
            one.wave_started(clients)

    def client_finished(self, k: int) -> None:
        for one in self.listeners:
            one.client_finished(k)

    def round_finished(self, record: Record) -> None:
        for one in self.listeners:
            one.round_finished(record)

    def note(self, text: str) -> None:
        for one in self.listeners:
            one.note(text)

    def run_stopped(self) -> None:
        for one in self.listeners:
            one.run_stopped()


class Lines(Listener):
    """One line a round, for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def run_started(self, config: Config, path: Path, first: int) -> None:
        self.rounds, self.first, self.began = config.num_rounds, first, perf_counter()
        self._print(_title(config, path) + (f", from round {first}" if first else ""))

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

    def run_started(self, config: Config, path: Path, first: int) -> None:
        say(self.console, _title(config, path))
        self.rounds = self.progress.add_task("rounds", total=config.num_rounds, completed=first, figures="")
        self.clients = self.progress.add_task("clients", total=config.num_clients, figures="")
        self.num_clients, self.wave, self.asked = config.num_clients, 0, 0
        self.progress.start()

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


class TensorBoard(Listener):
    """Every number of metrics.jsonl as a curve, under DIR/tensorboard."""

    def __init__(self) -> None:
        self._make = self._find()
        self._writer: Any = None

    @staticmethod
    def _find() -> Any:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as missing:
            raise Missing(
                "expected the package tensorboard, got none: pip install 'sparsefl[tensorboard]'"
            ) from missing
        return SummaryWriter

    def run_started(self, config: Config, path: Path, first: int) -> None:
        files.is_folder(path / TENSORBOARD)  # or nothing: a link would lead elsewhere
        # purge_step hides what a run that is resumed here wrote after its checkpoint
        self._writer = self._make(path / TENSORBOARD, purge_step=first)

    def round_finished(self, record: Record) -> None:
        for key, value in record.items():
            if isinstance(value, int | float) and key != "round":
                self._writer.add_scalar(key, value, record["round"])
        for name, density in record.get("layer_density", {}).items():
            self._writer.add_scalar(f"layer_density/{name}", density, record["round"])
        self._writer.flush()

    def run_stopped(self) -> None:
        if self._writer is not None:
            self._writer.close()


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
        title=Text(f"{summary['name']}: {summary['algorithm']}, {summary['num_rounds']} rounds"),
        title_justify="left",
    )
    for i, name in enumerate(SUMMARY_COLUMNS):
        table.add_column(name, justify="right" if i else "left")
    for row in summary_rows(summary):
        table.add_row(*map(Text, row))
    return table


def summary_rows(summary: Record) -> list[Row]:
    """What a run gave and what it cost. Measured and modelled figures have rows of their own."""
    ours, dense = summary, summary.get("baseline") or {}
    prunings = ", ".join(map(str, ours["prune_rounds"])) or "none"
    return [
        *_accuracies(ours, dense),
        *_accuracy_cost(ours),
        ("density, last round", f"{ours['density_last']:.3f}", "1", ""),
        ("prunings in rounds", prunings, "", ""),
        _compared("bytes sent", size, ours["bytes_total"], ours["bytes_total_dense"]),
        _compared("  as the paper counts", size, ours["bytes_total_paper"], ours["bytes_total_dense"]),
        _compared("training FLOP", _flop, ours["flop_total"], ours["flop_total_dense"]),
        _compared("local training, measured, all clients", duration, ours["train_s"], dense.get("train_s")),
        _compared("wall time, measured", duration, ours["wall_s"], dense.get("wall_s")),
        ("time, modelled", duration(ours["sim_time_s"]), "", ""),
        ("energy, modelled", f"{ours['sim_energy_j']:,.4g} J", "", ""),
        *(("MIXED", line, "", "") for line in mixed_lines(ours)),
    ]


def mixed_lines(summary: Record) -> list[str]:
    """From which round on numbers were computed otherwise, and how; empty: all alike."""
    parts = summary.get("mixed") or []
    return [
        f"from round {new['from_round']}: " + ", ".join(f"{key} {new['numerics'][key]}" for key in changed)
        for old, new in pairwise(parts)
        if (changed := [key for key in new["numerics"] if new["numerics"][key] != old["numerics"].get(key)])
    ]


def _accuracies(ours: Record, dense: Record) -> list[Row]:
    """Over all clients, each with the model that it would use; and of the server's model."""
    best = f"{percent(ours['accuracy_best'])} (round {ours['round_best']})"
    last, mean = percent(ours["accuracy_last"]), percent(ours["accuracy_last5"])
    rows = [
        ("test accuracy, best round", best, _accuracy(dense, "accuracy_best"), ""),
        ("test accuracy, mean of last 5", mean, _accuracy(dense, "accuracy_last5"), ""),
        ("test accuracy, last round", last, _accuracy(dense, "accuracy_last"), ""),
    ]
    if ours["accuracy_global_best"] is not None:
        shared = [percent(ours[f"accuracy_global_{when}"]) for when in ("best", "last5")]
        rows += [
            ("  server's model, best round", shared[0], "", ""),
            ("  server's model, mean of last 5", shared[1], "", ""),
        ]
    return rows


def _accuracy(dense: Record, key: str) -> str:
    """Of the same run on dense kernels, where there is one."""
    return percent(dense[key]) if key in dense else ""


def _accuracy_cost(ours: Record) -> list[Row]:
    """Of messages that are not exact: best round of the same run with exact ones, less that of this run."""
    values = ours.get("values", "fp32")
    if values == "fp32":
        return []
    name, exact = f"  what {values} messages cost", ours.get("exact")
    if exact is None:
        return [(name, "not measured (--baseline fp32)", "", "")]
    points = 100 * (exact["accuracy_best"] - ours["accuracy_best"])
    return [
        (name, f"{points:+.2f} points", "", ""),
        ("  accuracy with fp32", percent(exact["accuracy_best"]), "", ""),
    ]


def times(ours: float, dense: float) -> str:
    """How many times less: 1.95x. Empty where there was none."""
    return f"{dense / ours:.2f}x" if ours else ""


def _compared(name: str, shown: Callable[[float], str], ours: float, dense: float | None) -> Row:
    if dense is None:
        return name, shown(ours), "not measured", ""
    return name, shown(ours), shown(dense), times(ours, dense)


def describe(config: Config) -> str:
    """What runs, in a line."""
    what = f"{config.algorithm} on {config.data.name}, {config.model.name}"
    kernels = f"{config.training.kernels} kernels"
    return f"{what} ({kernels}), {config.num_clients} clients, {config.num_rounds} rounds"


def _title(config: Config, path: Path) -> str:
    return f"{config.name}: {describe(config)}, in {path}"


def figures(record: Record) -> str:
    """The main ones of a line of metrics.jsonl."""
    parts = [
        f"accuracy {percent(record['accuracy_mean'])}",
        f"density {record['density_mean']:.3f}",
        f"sent {size(record['bytes_total'])}",
        f"{record['wall_s']:.1f} s",
    ]
    if record.get("votes") is not None:
        parts.insert(2, f"votes {record['votes']:.2f}")
    if record.get("pruned"):
        parts.insert(2, f"pruned {record['pruned']}")
    if record.get("accuracy_global") is not None:
        parts.insert(1, f"server's model {percent(record['accuracy_global'])}")
    return "  ".join(parts)


def percent(share: float | None) -> str:
    return "none" if share is None else f"{100 * share:.2f} %"


def size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def _flop(count: float) -> str:
    return f"{count:.3g}"


def duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"
