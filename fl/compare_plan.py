"""What `sparsefl compare` runs: algorithms x seeds of one configuration, as the directory's plan.json has it.

    {"base": the configuration, with the sections of all algorithms,  "target": accuracy or null,
     "entries": {name: {"algorithm": which, "changes": ["key=value", ...], "seeds": [0, 1, 2]}}}

An entry has the name of an algorithm, or a user's (NAME=ALGORITHM) for one with settings of its own
(NAME:key=value). Runs of one seed have the same data, partition and first weights. They run seed by seed, so
that every algorithm has a curve early.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from fl import algorithms, config
from fl.config import Config, ConfigError

_NAME = re.compile(r"[A-Za-z0-9][\w.+-]*")


class Run(NamedTuple):
    name: str
    seed: int

    @property
    def folder(self) -> str:
        return f"{self.name}-seed-{self.seed}"

    def __str__(self) -> str:
        return f"{self.name}, seed {self.seed}"


@dataclass(frozen=True)
class Entry:
    algorithm: str
    seeds: tuple[int, ...]
    changes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plan:
    base: Config
    entries: Mapping[str, Entry]
    target: float | None = None

    @property
    def runs(self) -> list[Run]:
        """In the order in which they run."""
        most = max(len(entry.seeds) for entry in self.entries.values())
        return [
            Run(name, entry.seeds[i])
            for i in range(most)
            for name, entry in self.entries.items()
            if i < len(entry.seeds)
        ]

    def config(self, run: Run) -> Config:
        """Of one run. ConfigError: it cannot run like this."""
        entry = self.entries[run.name]
        own = [f"algorithm={entry.algorithm}", f"seed={run.seed}"]
        return config.changed(self.base, [*entry.changes, *own])

    def extended(self, chosen: Mapping[str, str], seeds: str, changes: Iterable[str]) -> "Plan":
        """With entries {name: algorithm}, and seeds and changes as the command line has them."""
        counts, own = _counts(seeds, chosen), _own(changes, chosen)
        entries = dict(self.entries)
        for name, algorithm in chosen.items():
            old, first = entries.get(name), self.base.seed
            if old is not None and (old.algorithm != algorithm or own[name]):
                raise ConfigError(f"{name}: expected a new name for new settings, got one of the comparison")
            wanted = tuple(range(first, first + counts[name]))
            if old is None:
                entries[name] = Entry(algorithm, wanted, tuple(own[name]))
            else:
                entries[name] = replace(old, seeds=tuple(sorted({*old.seeds, *wanted})))
        plan = replace(self, entries=entries)
        for name in (name for name in chosen if own[name]):  # wrong settings of its own: the user's mistake
            plan.config(Run(name, self.base.seed))
        return plan

    def to_json(self) -> dict[str, Any]:
        entries = {
            name: {"algorithm": entry.algorithm, "changes": list(entry.changes), "seeds": list(entry.seeds)}
            for name, entry in self.entries.items()
        }
        return {"base": self.base.model_dump(exclude_none=True), "target": self.target, "entries": entries}


def from_json(tree: Mapping[str, Any]) -> Plan:
    entries = {
        name: Entry(one["algorithm"], tuple(one["seeds"]), tuple(one["changes"]))
        for name, one in tree["entries"].items()
    }
    return Plan(config.parse(tree["base"]), entries, tree["target"])


def make(source: str, names: str, seeds: str, changes: Iterable[str], target: float | None = None) -> Plan:
    """`names`: "a,b,NAME=a" or "all"; `seeds`: "3" or "1,a=3"; `changes`: "key=value" or "NAME:key=value"."""
    chosen, given = _chosen(names), list(changes)
    own = [change for change in given if _is_own(change)]
    base = _base(source, [change for change in given if not _is_own(change)], chosen)
    return Plan(base, {}, target).extended(chosen, seeds, own)


def extend(plan: Plan, names: str | None, seeds: str | None, changes: Sequence[str]) -> Plan:
    """With more algorithms, or more seeds of those that it has; what it has stays as it is."""
    common = [change for change in changes if not _is_own(change)]
    if common:
        raise ConfigError(f"expected changes of new algorithms only (NAME:key=value), got {common}")
    if names is None:
        if seeds is None and not changes:
            return plan
        chosen = {name: entry.algorithm for name, entry in plan.entries.items()}
    else:
        chosen = _chosen(names)
    return plan.extended(chosen, seeds or "1", changes)


def _base(source: str, changes: Sequence[str], chosen: Mapping[str, str]) -> Config:
    """The configuration for an algorithm that accepts it: what all of them refuse is the user's mistake."""
    refusals = []
    for algorithm in dict.fromkeys([*chosen.values(), *algorithms.registered()]):
        try:
            return config.load(source, [*changes, f"algorithm={algorithm}"])
        except ConfigError as refused:
            refusals.append(refused)
    raise refusals[0]


def _chosen(names: str) -> dict[str, str]:
    """{name: algorithm} of "a,b,NAME=a"."""
    known = list(algorithms.registered())
    chosen: dict[str, str] = {}
    for name, algorithm in (pair for part in names.split(",") for pair in _named(part.strip(), known)):
        if algorithm not in known:
            raise ConfigError(f"--algorithms: expected some of {known}, or all, got {algorithm!r}")
        taken = name in chosen or (name in known and name != algorithm)
        if taken or not _NAME.fullmatch(name):
            wanted = "names of letters and digits, each once, those of algorithms for these"
            raise ConfigError(f"--algorithms: expected {wanted}, got {name!r} in {names!r}")
        chosen[name] = algorithm
    return chosen


def _named(part: str, known: Sequence[str]) -> list[tuple[str, str]]:
    if part == "all":
        return [(name, name) for name in known]
    name, equals, algorithm = (word.strip() for word in part.partition("="))
    return [(name, algorithm if equals else name)]


def _counts(text: str, names: Iterable[str]) -> dict[str, int]:
    """{name: seeds} of "3" or "1,a=3"."""
    counts, usual = dict.fromkeys(names, 0), 0
    for part in text.split(","):
        name, equals, number = (word.strip() for word in part.rpartition("="))
        if equals and name not in counts:
            raise ConfigError(f"--seeds: expected names out of {list(counts)}, got {name!r}")
        if not number.isdecimal() or int(number) < 1 or (usual and not equals):
            raise ConfigError(f"--seeds: expected how many, as 3 or 1,NAME=3, got {text!r}")
        if equals:
            counts[name] = int(number)
        else:
            usual = int(number)
    return {name: count or usual or 1 for name, count in counts.items()}


def _is_own(change: str) -> bool:
    return ":" in change.partition("=")[0]


def _own(changes: Iterable[str], names: Iterable[str]) -> dict[str, list[str]]:
    """{name: its changes} of "NAME:key=value"."""
    own: dict[str, list[str]] = {name: [] for name in names}
    for change in changes:
        name, _, rest = change.partition(":")
        if name.strip() not in own:
            raise ConfigError(f"--set: expected NAME:key=value with NAME out of {list(own)}, got {change!r}")
        own[name.strip()].append(rest)
    return own
