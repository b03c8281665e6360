"""`sparsefl list`: presets, algorithms and keys; tables on a terminal, elsewhere a line each, for grep."""

import re
from collections.abc import Iterable, Mapping, Sequence

from rich.console import Console
from rich.table import Table

from fl import algorithms, config
from fl.cli.exits import guarded
from fl.config import code, hardware
from fl.errors import ConfigError
from fl.units import quantity

_WIDEST = 28  # of a column in lines: a longer cell pushes on what follows it
_SENTENCE = re.compile(r"(?<! al)\.(?=\s|$)")

Cells = Sequence[str]
Tables = Mapping[Cells, Sequence[Cells]]  # head: rows, what a row is about in its first cell


def show_list(console: Console, keys: bool = False, part: str | None = None) -> int:
    """Presets and algorithms, or the keys of a configuration; only those with `part` in their name."""

    def work() -> int:
        tables = _keys() if keys else _presets_and_algorithms()
        shown = {head: [row for row in rows if not part or part in row[0]] for head, rows in tables.items()}
        if not any(shown.values()):
            what = "key" if keys else "preset or algorithm"
            raise ConfigError(f"expected part of the name of a {what}, got {part!r}; see them all without it")
        if console.is_terminal:
            console.print(*(_table(head, rows) for head, rows in shown.items() if rows), sep="\n")
        else:
            lines = "\n\n".join("\n".join(_lines(rows)) for rows in shown.values() if rows)
            console.print(lines, markup=False, highlight=False, soft_wrap=True)
        return 0

    return guarded(console, work)


def first_sentence(text: str | None) -> str:
    """Return the first sentence of a docstring, on one line."""
    paragraph = " ".join((text or "").strip().partition("\n\n")[0].split())
    end = _SENTENCE.search(paragraph)
    return paragraph[: end.end()] if end else paragraph


def _keys() -> Tables:
    return {("key", "type", "default", "meaning"): [*config.keys()]}


def _presets_and_algorithms() -> Tables:
    found = {name: first_sentence(module.__doc__) for name, module in algorithms.registered().items()}
    broken = code.installed("algorithm").keys() - found.keys()
    found |= {name: _installed(name, "algorithm") for name in sorted(broken)}
    return {
        ("preset", "what it is"): [*config.presets().items()],
        ("algorithm", "what it is"): [*found.items()],
        ("network", "what it is"): [
            (name, _installed(name, "model.name")) for name in code.installed("model.name")
        ],
        ("devices.hardware", "what is modelled"): [
            (name, _modelled(one)) for name, one in hardware.HARDWARE.items()
        ],
    }


def _modelled(one: hardware.Hardware) -> str:
    """A device in a line."""
    speed, link = quantity(one.peak_flops.value, "FLOP/s"), quantity(one.bandwidth.value, "bit/s")
    return f"modelled: {one.about}: {speed} at {one.compute_watts.value:g} W, {link}"


def _installed(name: str, key: str) -> str:
    """What an entry point of another's package is, or why it is of no use."""
    try:
        found = code.load(name, key)
        if key == "algorithm":
            algorithms.find(name)
    except ConfigError as wrong:
        return f"cannot be used: {wrong}"
    return f"{first_sentence(found.value.__doc__)} (from {found.origin})".strip()


def _table(head: Cells, rows: Iterable[Cells]) -> Table:
    table = Table(box=None, header_style="bold")
    for name in head:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def _lines(rows: Sequence[Cells]) -> list[str]:
    """Cells below one another where they are not too long, two blanks between them."""
    widths = [min(_WIDEST, max(map(len, column))) for column in zip(*rows, strict=True)]
    padded = [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows]
    return ["  ".join(cells).rstrip() for cells in padded]
