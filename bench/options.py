"""The options that several benchmarks have, and how lists are read: `0.5,0.2`, `0.5 0.2` or repeated."""

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

from typer import Option

from fl.errors import ConfigError

T = TypeVar("T")

Append = Annotated[
    bool, Option("--append", help="keep what the file of --json has, if it was measured in the same way")
]
Json = Annotated[Path | None, Option("--json", metavar="FILE", help="write the result here")]
Plot = Annotated[Path | None, Option("--plot", metavar="FILE", help="draw the curves: .png or .html")]
Quick = Annotated[
    bool,
    Option("--quick", help="few repeats, and few cases unless they are named: a look, not a measurement"),
]
Threads = Annotated[int, Option("--threads", min=1, help="threads, of us and of every rival")]
Repeats = Annotated[int | None, Option("--repeats", min=1, help="measurements of each; the median counts")]
CpuTime = Annotated[
    bool, Option("--cpu-time", help="ratios of the processor's time, not the clock's: on a shared machine")
]
Values = list[str] | None
Models = Annotated[
    Values, Option("--model", metavar="NAME,...", help="networks; default: resnet18,vgg11,alexnet")
]
Batches = Annotated[
    Values, Option("--batch", metavar="B,...", help="images per training step; default: 32,128")
]


def density(default: str) -> Any:
    """The option --density of a benchmark."""
    return Option("--density", metavar="D,...", help=f"shares of the weights stored; default: {default}")


def shares(option: str, given: Sequence[str] | None, default: Sequence[float]) -> tuple[float, ...]:
    """Numbers above 0, up to 1."""
    return _several(option, given, default, float, lambda x: 0 < x <= 1, "numbers above 0, up to 1")


def sparsities(option: str, given: Sequence[str] | None, default: Sequence[float]) -> tuple[float, ...]:
    """Numbers from 0 to below 1."""
    return _several(option, given, default, float, lambda x: 0 <= x < 1, "numbers from 0 to below 1")


def counts(option: str, given: Sequence[str] | None, default: Sequence[int]) -> tuple[int, ...]:
    """Whole numbers from 1 on."""
    return _several(option, given, default, int, lambda x: x >= 1, "whole numbers from 1 on")


def names(
    option: str, given: Sequence[str] | None, default: Sequence[str], known: Collection[str]
) -> tuple[str, ...]:
    """Out of `known`."""
    return _several(option, given, default, str, lambda x: x in known, f"names out of {list(known)}")


def _several(
    option: str,
    given: Sequence[str] | None,
    default: Sequence[T],
    kind: Callable[[str], T],
    allowed: Callable[[T], bool],
    expected: str,
) -> tuple[T, ...]:
    """What was given, each part once, or the default."""
    if not given:
        return tuple(default)
    found: dict[T, None] = {}
    for part in ",".join(given).split(","):
        try:
            value = kind(part.strip())
        except ValueError:
            value = None
        if value is None or not allowed(value):
            raise ConfigError(f"{option}: expected {expected}, got {part.strip()!r}")
        found[value] = None
    return tuple(found)
