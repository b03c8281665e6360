"""What `sparsefl` and `sparsefl bench` share: the command nearest to a wrong one, options of many values."""

import difflib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

MEANT: Mapping[str, str] = {  # words of others: our command for it
    "train": "run",
    "start": "run",
    "resume": "run",
    "keys": "list",
    "presets": "list",
    "algorithms": "list",
    "benchmark": "bench",
    "check": "doctor",
    "schedule": "simulate",
}


class Commands(TyperGroup):
    """A group that answers a wrong command with its commands and the nearest of them."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        known = self.list_commands(ctx)
        if args and args[0] not in known and not args[0].startswith("-"):
            ctx.fail(f"expected a command out of {known}, got {args[0]!r}{near_command(args[0], known)}")
        return super().resolve_command(ctx, args)


class Command(TyperCommand):
    """A command whose repeatable options also take several values at once: `--density 0.5 0.2`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        repeatable = {name for one in self.params if getattr(one, "multiple", False) for name in one.opts}
        return super().parse_args(ctx, [*_repeated(args, repeatable)])


def application(text: str) -> typer.Typer:
    """A group of commands without any yet; `text` is its help."""
    return typer.Typer(
        help=text,
        cls=Commands,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )


def near_command(word: str, known: Iterable[str]) -> str:
    """ "; did you mean ...?" where a known command is near, else nothing."""
    names = {name: name for name in known}
    words = {other: meant for other, meant in MEANT.items() if meant in names} | names
    found = difflib.get_close_matches(word, words, n=1)
    return f"; did you mean {words[found[0]]!r}?" if found else ""


def _repeated(args: Iterable[str], options: set[str]) -> Iterator[str]:
    """`--a 1 2` as `--a 1 --a 2`, of these options."""
    option, taken = None, 0
    for arg in args:
        if arg.startswith("--"):
            option, taken = (arg if arg in options else None), 0
        elif option is not None:
            taken += 1
            if taken > 1:
                yield option
        yield arg
