"""What `sparsefl compare` runs: algorithms x seeds of one configuration, as the directory's plan.json has it.

    {"format": 2,  "base": config.plain of it, with all sections,  "target": accuracy or null,
     "entries": {name: {"algorithm": which, "changes": ["key=value", ...], "seeds": [0, 1, 2]}}}

Format 1 had no number, and lost the keys that were set to none. plan.json may be somebody else's: `from_json`
checks all of it, and a Plan has names that are plain folder names, whoever made it.

An entry has the name of an algorithm, or a user's (NAME=ALGORITHM) for one with settings of its own
(NAME:key=value), or one that a grid makes (fl/compare/grid.py). Runs of one seed have the same data,
partition and first weights. They run seed by seed, so that every algorithm has a curve early.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from fl import algorithms, config
from fl.compare import grid
from fl.config import Config, ConfigError, Loaded, code
from fl.errors import RunDirError

FORMAT = 2
_NAME = re.compile(r"[A-Za-z0-9][\w.+-]{0,99}")
_SEEDS = range(2**63)


class Run(NamedTuple):
    name: str
    seed: int

    @property
    def folder(self) -> str:
        return f"{self.name}-seed-{self.seed}"

    def below(self, path: Path) -> Path:
        """Its directory in that of the comparison: every path of a run is made here."""
        place = path / self.folder
        if not _NAME.fullmatch(self.name) or place.resolve().parent != path.resolve():
            raise RunDirError(
                f"{self}: expected the directory of a run inside {path}, got {place}, which leads elsewhere: "
                "move the run there itself"
            )
        return place

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
    notes: tuple[str, ...] = field(default=(), compare=False)  # what the user should know, at the start

    def __post_init__(self) -> None:
        for name, entry in self.entries.items():
            if not _NAME.fullmatch(name):
                raise ConfigError(f"expected a name of letters and digits, up to 100, got {name!r}")
            if not entry.seeds:
                raise ConfigError(f"{name}: expected at least one seed, got none")

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
        """Return the configuration of one run, as in its config.toml. ConfigError: it cannot run so."""
        entry = self.entries[run.name]
        own = [f"algorithm={entry.algorithm}", f"seed={run.seed}"]
        return config.settled(config.changed(self.base, [*entry.changes, *own]))

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds of all entries; the configuration's if there are no entries yet."""
        return tuple(sorted({seed for entry in self.entries.values() for seed in entry.seeds})) or (
            self.base.seed,
        )

    def extended(self, chosen: Mapping[str, str], seeds: str | None, changes: Iterable[str]) -> "Plan":
        """With entries {name: algorithm}, and seeds and changes as the command line has them.

        A new entry without a number of seeds has those of the others.
        """
        counts, own = _counts(seeds, chosen), _own(changes, chosen)
        entries, first = dict(self.entries), self.base.seed
        for name, algorithm in chosen.items():
            old, count = entries.get(name), counts[name]
            other = old is not None and own[name] and tuple(own[name]) != old.changes
            if old is not None and (old.algorithm != algorithm or other):
                raise ConfigError(f"{name}: expected a new name for new settings, got one of the comparison")
            wanted = set(self.seeds if old is None else ()) if count is None else range(first, first + count)
            if old is None:
                entries[name] = Entry(algorithm, tuple(sorted(wanted)), tuple(own[name]))
            else:
                entries[name] = replace(old, seeds=tuple(sorted({*old.seeds, *wanted})))
        plan = replace(self, entries=entries)
        for name in (name for name in chosen if own[name]):  # wrong settings of its own: the user's mistake
            config.refuse_unread([plan.config(Run(name, first))], config.changed_keys(own[name]))
        return plan

    def refuse_unread(self, changes: Iterable[str]) -> None:
        """ConfigError where no entry reads a key of `changes`, which were made for all."""
        found = []
        for name in self.entries:
            with suppress(ConfigError):  # it cannot run like this: its own run says so
                found.append(self.config(Run(name, self.base.seed)))
        config.refuse_unread(found, config.changed_keys(changes))

    def to_json(self) -> dict[str, Any]:
        entries = {
            name: {"algorithm": entry.algorithm, "changes": list(entry.changes), "seeds": list(entry.seeds)}
            for name, entry in self.entries.items()
        }
        tree = config.plain(self.base)
        return {"format": FORMAT, "base": tree, "target": self.target, "entries": entries}


def from_json(tree: Any) -> Plan:
    """The plan in a file. ConfigError: what was expected there, and what is."""
    if isinstance(tree, dict) and tree.get("format") != FORMAT:
        raise ConfigError(
            f"expected a plan of format {FORMAT}, got {tree.get('format', 'one without a number')}: another "
            "version of sparsefl made it; start the comparison anew"
        )
    given = _object(tree, "the plan", ("format", "base", "target", "entries"))
    target, entries = given["target"], given["entries"]
    if target is not None and not (type(target) in (int, float) and 0 < target <= 1):
        raise ConfigError(f"target: expected null or an accuracy above 0, up to 1, got {target!r}")
    if not isinstance(entries, dict) or not entries:
        raise ConfigError(f"entries: expected an object with at least one algorithm, got {entries!r}")
    if not isinstance(given["base"], dict):
        raise ConfigError(f"base: expected a configuration, got {given['base']!r}")
    found = {name: _entry(one, f"entries.{name}") for name, one in entries.items()}
    return Plan(config.parse(given["base"]), found, target)


def _entry(tree: Any, where: str) -> Entry:
    given, known = _object(tree, where, ("algorithm", "changes", "seeds")), list(algorithms.registered())
    algorithm, changes, seeds = given["algorithm"], given["changes"], given["seeds"]
    if algorithm not in known and not (isinstance(algorithm, str) and code.reference(algorithm)):
        raise ConfigError(f"{where}.algorithm: expected one of {known}, got {algorithm!r}")
    if not isinstance(changes, list) or not all(isinstance(one, str) for one in changes):
        raise ConfigError(f"{where}.changes: expected a list of strings as key=value, got {changes!r}")
    whole = isinstance(seeds, list) and all(type(one) is int and one in _SEEDS for one in seeds)
    if not whole or len(set(seeds)) != len(seeds):
        raise ConfigError(f"{where}.seeds: expected a list of whole numbers, each once, got {seeds!r}")
    algorithms.find(algorithm)  # its section may be in the base
    return Entry(algorithm, tuple(seeds), tuple(changes))


def _object(tree: Any, what: str, keys: Sequence[str]) -> dict[str, Any]:
    if not isinstance(tree, dict) or set(tree) != set(keys):
        got = sorted(map(str, tree)) if isinstance(tree, dict) else repr(tree)
        raise ConfigError(f"{what}: expected an object with the keys {list(keys)}, got {got}")
    return tree


def make(
    source: str,
    names: str | None,
    seeds: str | None,
    changes: Iterable[str],
    target: float | None = None,
    axes: Iterable[str] = (),
) -> Plan:
    """`names`: "a,b,NAME=a" or "all", None: the configuration's algorithm; `seeds`: "3" or "1,a=3";
    `changes`: "key=value" or "NAME:key=value"; `axes`: "key=a,b" of a grid (fl/compare/grid.py)."""
    given = list(changes)
    own = [change for change in given if _is_own(change)]
    common = [change for change in given if not _is_own(change)]
    chosen = _chosen(names if names is not None else config.read(source, common)[0].algorithm)
    for algorithm in filter(code.reference, chosen.values()):
        code.allow(algorithm)
        algorithms.find(algorithm)  # the file may have its section, whichever runs first
    base, notes = _base(source, common, chosen)
    if wanted := grid.axes(axes):
        chosen, own, seeds = grid.expand(wanted, chosen, seeds, own)
    plan = Plan(base, {}, target, notes).extended(chosen, seeds, own)
    plan.refuse_unread(common)
    return plan


def extend(
    plan: Plan, names: str | None, seeds: str | None, changes: Sequence[str], axes: Iterable[str] = ()
) -> Plan:
    """With more algorithms or values of a grid, or more seeds of what it has, which stays as it is.

    New algorithms have all seeds of the comparison unless `seeds` says how many.
    """
    common = [change for change in changes if not _is_own(change)]
    if common:
        raise ConfigError(f"expected changes of new algorithms only (NAME:key=value), got {common}")
    if wanted := grid.axes(axes):
        chosen = _chosen(names if names is not None else plan.base.algorithm)
        chosen, changes, seeds = grid.expand(wanted, chosen, seeds, changes)
    elif names is None:
        if seeds is None and not changes:
            return plan
        chosen = {name: entry.algorithm for name, entry in plan.entries.items()}
    else:
        chosen = _chosen(names)
    return plan.extended(chosen, seeds, changes)


def _base(source: str, changes: Sequence[str], chosen: Mapping[str, str]) -> Loaded:
    """The configuration for an algorithm that accepts it: what all of them refuse is the user's mistake."""
    if "algorithm" in config.changed_keys(changes):
        raise ConfigError("algorithm: expected a key that has an effect here: --algorithms says what runs")
    refusals = []
    for algorithm in dict.fromkeys([*chosen.values(), *algorithms.registered()]):
        try:
            return config.read(source, changes, algorithm=algorithm)
        except ConfigError as refused:
            refusals.append(refused)
    raise refusals[0]


def _chosen(names: str) -> dict[str, str]:
    """{name: algorithm} of "a,b,NAME=a"."""
    known = list(algorithms.registered())
    chosen: dict[str, str] = {}
    for name, algorithm in (pair for part in names.split(",") for pair in _named(part.strip(), known)):
        if algorithm not in known and code.reference(algorithm) is None:
            raise ConfigError(f"--algorithms: expected some of {known}, FILE.py, or all, got {algorithm!r}")
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
    return [(name, algorithm) if equals else (code.stem(name), name)]


def _counts(text: str | None, names: Iterable[str]) -> dict[str, int | None]:
    """{name: seeds} of "3" or "1,a=3"; None: not said."""
    counts: dict[str, int | None] = dict.fromkeys(names)
    usual: int | None = None
    for part in text.split(",") if text is not None else ():
        name, equals, number = (word.strip() for word in part.rpartition("="))
        if equals and name not in counts:
            raise ConfigError(f"--seeds: expected names out of {list(counts)}, got {name!r}")
        if not number.isdecimal() or len(number) > 6 or int(number) < 1 or (usual and not equals):
            raise ConfigError(f"--seeds: expected how many, as 3 or 1,NAME=3, got {text!r}")
        if equals:
            counts[name] = int(number)
        else:
            usual = int(number)
    return {name: count or usual for name, count in counts.items()}


def _is_own(change: str) -> bool:
    return ":" in change.partition("=")[0]


def _own(changes: Iterable[str], names: Iterable[str]) -> dict[str, list[str]]:
    """{name: its changes} of "NAME:key=value"."""
    own: dict[str, list[str]] = {name: [] for name in names}
    for change in changes:
        name, _, rest = change.partition(":")
        if name.strip() not in own:
            raise ConfigError(f"--set: expected NAME:key=value with NAME out of {list(own)}, got {change!r}")
        key, _, value = (part.strip() for part in rest.partition("="))
        if key in code.KEYS:
            code.allow(value.strip("'\""))
        own[name.strip()].append(rest)
    return own
