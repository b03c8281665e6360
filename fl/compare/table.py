"""The tables of a comparison, made from what comparison.json holds: for terminals, Markdown and pages.

Measured and modelled figures have columns of their own, and names that say which they are.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from fl.errors import ConfigError
from fl.report import energy
from fl.run.recorded import Record
from fl.units import counted, duration, quantity, size

Cells = list[str]
NONE = "-"


class Column(NamedTuple):
    key: str
    head: str
    shown: Callable[[float], str]
    deviation: bool = False  # "mean ± sd" where there are several seeds
    missing: str = NONE  # in place of a value


class Shown(NamedTuple):
    """A table as text. The first column names the row."""

    head: Cells
    rows: list[Cells]


def _percent(share: float) -> str:
    return f"{100 * share:.2f}"


def _count(number: float) -> str:
    return quantity(number, "").strip()


def _seconds(time: float) -> str:
    return quantity(time, "s") if 0 < time < 1 else duration(time)


def _joule(value: float) -> str:
    return quantity(value, "J")


_COSTS = (
    Column("bytes_total", "sent", size),
    Column("flop_total", "training FLOP", _count),
    Column("wall_s", "wall time, measured", _seconds),
    Column("sim_time_s", "time, modelled", _seconds),
    Column("sim_energy_j", "energy, modelled", _joule),
)
_RESULTS = (
    Column("accuracy_best", "best accuracy, %", _percent, True),
    Column("accuracy_last5", "mean of last 5, %", _percent, True),
    Column("accuracy_global_best", "server's model, best, %", _percent, True),
    Column("sparsity_last", "sparsity, last", "{:.3f}".format),
    *_COSTS[:-1],
)
_ENERGY = (  # of comparisons in which somebody asked for it
    Column("energy_j", energy.TITLE, _joule),
    Column("energy_net_j", f"{energy.TITLE}, net of idle", _joule),
)
_ROUNDS = Column("rounds", "rounds", "{:.3g}".format, True)
_TARGET = (_ROUNDS, *_COSTS)
MEANING = (
    "Means over seeds, ± standard deviation. Accuracy is over all clients, each on its own test samples with "
    "the model that it would use: the one that it trained last, or its personal one (Ditto); in the best "
    "round, and as a mean of the last five. The server's model is tested on all clients too. Sent: bytes of "
    "all messages as they were written. Wall time was measured on the machine of the comparison, and so was "
    "energy where meters were asked for (--energy); time and energy of clients' devices are modelled. Where "
    "runs stop early (run.patience), rounds are those that ran, and sums are over them. comparison.json has "
    "more: last rounds, the paper's count of bytes, the busiest client, the time of local training."
)


def results(told: Record) -> Shown:
    """A row per algorithm."""
    _refuse_older(told)
    columns = [column for column in _RESULTS if _any(told, "figures", column.key)]
    if _some_stopped(told):
        columns.insert(0, _ROUNDS)
    if energy.asked(told["environment"]):
        columns += [_COSTS[-1], *_energy(told)]  # modelled joules beside measured ones
    counts = {name: (one["finished"], one["planned"]) for name, one in told["algorithms"].items()}
    return _table(told, "figures", "seeds", counts, columns)


def _energy(told: Record) -> list[Column]:
    """Measured joules; none where nobody asked for them."""
    environment = told["environment"]
    if not energy.asked(environment):
        return []
    return [column._replace(missing=energy.absent(environment)) for column in _ENERGY]


def _refuse_older(told: Record) -> None:
    """comparison.json of older versions: accuracies of methods with a server were over sampled clients."""
    figures = {name: one["figures"] or {} for name, one in told["algorithms"].items()}
    has = [name for name, one in figures.items() if one.get("accuracy_global_best") is not None]
    older = [name for name in has if "accuracy_last5" not in figures[name]]
    if older:
        raise ConfigError(
            f"expected accuracies over all clients, got those of sampled clients for {', '.join(older)}, as "
            "older versions wrote them: run the comparison again"
        )


def to_target(told: Record) -> Shown:
    """Return the table of what the target accuracy cost; "reached" counts seeds."""
    counts = {name: (one["reached"], one["finished"]) for name, one in told["algorithms"].items()}
    return _table(told, "to_target", "reached", counts, (*_TARGET, *_energy(told)))


def target(told: Record) -> str:
    """In a sentence."""
    given = told["target"]
    return f"Target accuracy: {100 * given['accuracy']:.2f} % ({given['meaning']})" if given else "No target."


def notes(told: Record, *states: str) -> Cells:
    """What is not finished, or finished and to be told of, by name; or what is in one of `states`."""
    wanted = states or {run["state"] for run in told["runs"]} - {"finished"}
    return [
        f"{run['name']}, seed {run['seed']}: {run['state']}: {run['message']}"
        for run in told["runs"]
        if run["state"] in wanted or (run["message"] and not states)
    ]


def differences(told: Record) -> Cells:
    """Settings in which the rows differ, a line each."""
    return [one["text"] for one in told.get("differences", ())]  # results of older versions have none


def short(told: Record) -> str:
    """The table of results for a document, what is missing in it, and where it comes from."""
    parts = [_markdown(results(told)), _items(told), _text(_origin(told))]
    return "\n\n".join(part for part in parts if part)


def markdown(told: Record) -> str:
    """comparison.md."""
    rounds = counted(told["num_rounds"], "round")
    parts = [
        f"# {_text(told['name'])}: {_text(', '.join(told['algorithms']))}",
        f"{told['num_clients']} clients, {rounds}. {_text(told['description'])}".strip(),
        _markdown(results(told)),
        _items(told),
        MEANING,
        target(told),
        _markdown(to_target(told)) if told["target"] else "",
        _text(_origin(told)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def show(console: Console, told: Record) -> None:
    """For a terminal."""
    _print(console, results(told))
    for note in differences(told):
        console.print(note, style="yellow", markup=False, highlight=False, soft_wrap=True)
    for note in notes(told):
        console.print(note, style="red", markup=False, highlight=False, soft_wrap=True)
    console.print(target(told), markup=False, highlight=False, soft_wrap=True)
    if told["target"]:
        _print(console, to_target(told))


def _origin(told: Record) -> str:
    return ", ".join(f"{name} {value}" for name, value in told["environment"].items())


def _table(
    told: Record, part: str, head: str, counts: Mapping[str, tuple[int, int]], columns: Sequence[Column]
) -> Shown:
    rows = [
        [name, _of(*counts[name]), *(_cell(one[part], column) for column in columns)]
        for name, one in told["algorithms"].items()
    ]
    return Shown(["algorithm", head, *(column.head for column in columns)], rows)


def _of(there: int, of: int) -> str:
    return str(there) if there == of else f"{there} of {of}"


def _cell(spreads: Record | None, column: Column) -> str:
    one = spreads.get(column.key) if spreads else None
    if one is None:
        return column.missing if spreads else NONE
    shown = column.shown(one["mean"])
    return f"{shown} ± {column.shown(one['sd'])}" if column.deviation and one["sd"] is not None else shown


def _some_stopped(told: Record) -> bool:
    """Whether runs ended before their last round; results of older versions have none that did."""
    done = [run["figures"] for run in told["runs"] if run["figures"]]
    return any(one.get("rounds", told["num_rounds"]) < told["num_rounds"] for one in done)


def _any(told: Record, part: str, key: str) -> bool:
    return any(one[part] and one[part].get(key) is not None for one in told["algorithms"].values())


def _markdown(shown: Shown) -> str:
    lines = [shown.head, ["---", *["---:"] * (len(shown.head) - 1)], *shown.rows]
    return "\n".join(f"| {' | '.join(map(_text, line))} |" for line in lines)


def _items(told: Record) -> str:
    return "\n".join(f"- {_text(note)}" for note in [*differences(told), *notes(told)])


_SPECIAL = re.compile(r"[\\`*\[\]|~$]|(?<![^\W_])_|_(?![^\W_])")  # of Markdown, inside a line


def _text(given: str) -> str:
    """`given` as Markdown shows it letter by letter and in one line: no HTML, no Markdown, no new cell."""
    return _SPECIAL.sub(r"\\\g<0>", escape(" ".join(given.split()), quote=False))


def _print(console: Console, shown: Shown) -> None:
    """Print as many columns side by side as fit, each group after the first column."""
    widths = _widths(shown)
    for columns in _parts(widths, console.width):
        table = Table(header_style="bold")
        for i in columns:
            table.add_column(shown.head[i], justify="right" if i else "left", width=widths[i])
        for row in shown.rows:
            table.add_row(*(row[i] for i in columns))
        console.print(table, markup=False, highlight=False)


def _widths(shown: Shown) -> list[int]:
    """Headings may break between words, cells may not."""
    columns = zip(*shown.rows, strict=True)
    return [max(map(len, [*cells, *head.split()])) for head, cells in zip(shown.head, columns, strict=True)]


def _parts(widths: Sequence[int], width: int) -> list[list[int]]:
    """Numbers of columns."""
    parts, needed = [[0]], [one + 3 for one in widths]  # with a line and two blanks
    for i in range(1, len(needed)):
        if sum(needed[j] for j in parts[-1]) + needed[i] + 1 > width and len(parts[-1]) > 1:
            parts.append([0])
        parts[-1].append(i)
    return parts
