"""`--grid training.lr=0.05,0.1`: an entry of a comparison for every combination of values.

    da_dpfl with training.lr=0.05,0.1 and da_dpfl.max_wait=0,2
        da_dpfl-lr-0.05-max_wait-0, da_dpfl-lr-0.05-max_wait-2, da_dpfl-lr-0.1-max_wait-0, ...

A key of an algorithm's own section makes entries of this algorithm alone. Names hold the last part of a key;
all of it where two keys would look the same. `--seeds da_dpfl=3` and `--set da_dpfl:key=value` are of all
entries that were made from da_dpfl.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import NamedTuple

from fl import algorithms
from fl.config import code
from fl.errors import ConfigError

Axes = Mapping[str, Sequence[str]]  # {key: values}
_INSTEAD = {"seed": "--seeds", "algorithm": "--algorithms"}
_OUTSIDE_BRACKETS = re.compile(r",(?![^\[]*\])")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.+-]+")


class Expanded(NamedTuple):
    """Entries of a grid, and what the command line says of each."""

    chosen: dict[str, str]  # {name: algorithm}
    changes: list[str]  # NAME:key=value
    seeds: str | None


def axes(given: Iterable[str]) -> Axes:
    """{key: values} of "key=a,b" each. A comma inside brackets is part of a value."""
    found: dict[str, list[str]] = {}
    for one in given:
        key, equals, text = (part.strip() for part in one.partition("="))
        values = [value.strip() for value in _OUTSIDE_BRACKETS.split(text)]
        if not key or not equals or not all(values):
            raise ConfigError(f"--grid: expected KEY=VALUE,VALUE,..., got {one!r}")
        if key in _INSTEAD:
            raise ConfigError(f"--grid: expected a key of a setting, got {key}: use {_INSTEAD[key]}")
        if key in found or len(set(values)) != len(values):
            raise ConfigError(f"--grid: expected every key and value once, got {one!r}")
        found[key] = values
    return found


def expand(grid: Axes, chosen: Mapping[str, str], seeds: str | None, changes: Iterable[str]) -> Expanded:
    """`chosen`: {name: algorithm}; `seeds` and `changes` as the command line has them, of these names."""
    made: dict[str, str] = {}
    own: list[str] = []
    names: dict[str, list[str]] = {}
    for base, algorithm in chosen.items():
        keys = [key for key in grid if _counts(key, algorithm)]
        for values in product(*(grid[key] for key in keys)):
            name = "-".join(
                [base, *(_part(key, value, grid) for key, value in zip(keys, values, strict=True))]
            )
            if name in made:
                raise ConfigError(f"--grid: expected values with names of their own, got {name} twice")
            made[name] = algorithm
            own += [f"{name}:{key}={value}" for key, value in zip(keys, values, strict=True)]
            names.setdefault(base, []).append(name)
    unused = [key for key in grid if not any(_counts(key, algorithm) for algorithm in chosen.values())]
    if unused:
        raise ConfigError(f"--grid: expected keys of {sorted({*chosen.values()})}, got {unused[0]}")
    return Expanded(made, [*_of_each(changes, names), *own], _seeds(seeds, names))


def _counts(key: str, algorithm: str) -> bool:
    """Whether a key is one of this algorithm's entries: not where it is of another algorithm's section."""
    section = key.partition(".")[0]
    return section == code.stem(algorithm) or section not in algorithms.registered()


def _part(key: str, value: str, grid: Axes) -> str:
    last = key.rpartition(".")[2]
    short = last if sum(other.rpartition(".")[2] == last for other in grid) == 1 else key
    return f"{short}-{_NOT_IN_NAMES.sub('_', value)}"


def _of_each(changes: Iterable[str], names: Mapping[str, Sequence[str]]) -> list[str]:
    """NAME:key=value of every entry that was made from NAME."""
    found = []
    for change in changes:
        name, colon, rest = change.partition(":")
        found += [f"{one}{colon}{rest}" for one in names.get(name.strip(), [name])]
    return found


def _seeds(text: str | None, names: Mapping[str, Sequence[str]]) -> str | None:
    if text is None:
        return None
    parts = []
    for part in text.split(","):
        name, equals, number = part.rpartition("=")
        parts += [f"{one}{equals}{number}" for one in names.get(name.strip(), [name])]
    return ",".join(parts)
