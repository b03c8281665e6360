"""Where the values of a configuration come from: files, presets and changes, one laid over the other.

    BASE     a preset, or a file that sets every key there is (the config.toml of a run)
    FILE     a file of the user's
    CHANGE   `--set key=value`

`Source` is the tree of plain values, and which layer set each key. A layer that changes the data or the
algorithm but has no name of its own adds them to the name: "demo" with data.name = mine is "demo-mine".
"""

import os
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any

from fl.config import code
from fl.config.words import nearest, shown
from fl.errors import ConfigError

PRESETS = Path(__file__).with_name("presets")
NONE = "none"
_DEEPEST = 5  # tables in tables; there are three
_MOST_BYTES = 1 << 20  # of a file; those of runs have 3,000
_NAMING = (("data.name", "digits"), ("algorithm", "da_dpfl"))  # and their defaults
_DESCRIBED = ("data.name", "model.name", "num_clients")  # what descriptions tell of
_DEFAULT_NAME = "run"
FREE = ("model.options",)  # tables with any keys: one value, as far as their origin goes
_LONGEST_PART = 30  # letters that a data set or an algorithm adds to the name

Tree = dict[str, Any]


class Origin(IntEnum):
    BASE = 0
    FILE = 1
    CHANGE = 2


@dataclass
class Source:
    tree: Tree
    origin: dict[str, Origin] = field(default_factory=dict)

    def keys(self, origin: Origin) -> list[str]:
        """Return the keys that this layer set last."""
        return [key for key, layer in self.origin.items() if layer is origin]

    def drop(self, key: str) -> None:
        """Back to its default."""
        tree: Any = self.tree
        *sections, last = key.split(".")
        for section in sections:
            tree = tree.get(section)
            if not isinstance(tree, dict):
                return
        tree.pop(last, None)
        self.origin.pop(key, None)

    def lay(self, tree: Mapping[str, Any], origin: Origin) -> None:
        """Another layer over this one."""
        _merge(self.tree, tree)
        self.origin |= dict.fromkeys(leaves(tree), origin)

    def change(self, changes: Iterable[str], unsets: Callable[[list[str]], bool]) -> None:
        """Changes like "training.lr=0.05"; `unsets`: whether "none" is a value of the key."""
        for one in changes:
            path, value = _parsed(one)
            key = ".".join(path)
            if value is None and not unsets(path):  # TOML has no null: back to the default
                self.drop(key)
            else:
                self._put(path, NONE if value is None else value)

    @contextmanager
    def renamed(self) -> Iterator[None]:
        """Adds the data set and the algorithm to the name, where the block changes them but not the name; and
        takes the description away, where the block changes what it describes but not the description."""
        name, before = self.tree.get("name", _DEFAULT_NAME), _naming(self.tree)
        described, text = _at(self.tree, _DESCRIBED), self.tree.get("description")
        yield
        if _at(self.tree, _DESCRIBED) != described and self.tree.get("description") == text:
            self.tree.pop("description", None)
        now = _naming(self.tree)
        added = [_short(new) for old, new in zip(before, now, strict=True) if new != old]
        if added and self.tree.get("name", _DEFAULT_NAME) == name and isinstance(name, str):
            self.tree["name"] = "-".join([name, *added])

    def _put(self, path: list[str], value: Any) -> None:
        tree, key = self.tree, ".".join(path)
        for part in path[:-1]:
            tree = tree.setdefault(part, {})
            if not isinstance(tree, dict):
                raise ConfigError(f"{key}: expected a key of a section, got one below the value {part!r}")
        tree[path[-1]] = value
        self.origin = {one: layer for one, layer in self.origin.items() if not one.startswith(f"{key}.")}
        free = [one for one in FREE if key.startswith(f"{one}.")]
        self.origin |= dict.fromkeys(free or leaves({key: value}), Origin.CHANGE)


def read(source: str | Path, complete: Callable[[Tree], bool]) -> Source:
    """The file or preset `source`, over what it extends; `complete`: whether a file sets every key."""
    return _read(find(source), complete, ())


def find(source: str | Path) -> Path:
    """The file of a preset's name, a path, or a run directory."""
    path = Path(source)
    try:
        if path.suffix == ".toml" or path.exists():
            return path / "config.toml" if path.is_dir() else path
        preset = PRESETS / f"{source}.toml"
        if preset.is_file() and preset.parent == PRESETS:
            return preset
    except (OSError, ValueError):  # no name that a file can have
        pass
    names = [path.stem for path in presets()]
    near = nearest(str(source), names)
    raise ConfigError(f"expected a preset out of {names}, or a .toml file, got {shown(str(source))}{near}")


def presets() -> list[Path]:
    """The files that ship with the package."""
    return sorted(PRESETS.glob("*.toml"))


def parse_file(path: Path) -> Tree:
    """The tree in one file."""
    try:
        if path.exists() and not path.is_file():
            raise ConfigError(f"expected a configuration file, got {path}, which is no regular file")
        with open(path, "rb") as file:
            text = file.read(_MOST_BYTES + 1)
        if len(text) > _MOST_BYTES:
            raise ConfigError(f"{path}: expected a file of at most {_MOST_BYTES:,} bytes, got a larger one")
        return _shallow(tomllib.loads(text.decode()))
    except OSError as wrong:
        raise ConfigError(f"expected a configuration file, got {path}: {wrong.strerror}") from wrong
    except RecursionError:
        raise ConfigError(f"{path}: expected TOML, got values nested too deeply") from None
    except ConfigError:
        raise
    except ValueError as wrong:
        raise ConfigError(f"{path}: expected TOML, got {wrong}") from wrong


def _shallow(tree: Tree) -> Tree:
    """`tree`, if its tables are not deeper than any that are known."""
    below = [tree]
    for _ in range(_DEEPEST):
        below = [value for one in below for value in one.values() if isinstance(value, dict)]
    if below:
        raise ValueError("tables nested too deeply")
    return tree


def leaves(tree: Mapping[str, Any], at: str = "") -> Iterator[str]:
    """The keys of all values, as "section.key"."""
    for key, value in tree.items():
        table = isinstance(value, Mapping) and f"{at}{key}" not in FREE
        yield from leaves(value, f"{at}{key}.") if table else [f"{at}{key}"]


def _read(path: Path, complete: Callable[[Tree], bool], above: tuple[Path, ...]) -> Source:
    if path.resolve() in above:
        chain = " -> ".join(one.name for one in (*above, path))
        raise ConfigError(f"{path}: extends: expected a file that does not lead back here, got {chain}")
    tree = parse_file(path)
    base = tree.pop("extends", None)
    if base is not None and not isinstance(base, str):
        raise ConfigError(f"{path}: extends: expected the name of a preset, got {base!r}")
    shipped = path.resolve().parent == PRESETS.resolve()
    origin = Origin.BASE if shipped or (base is None and complete(tree)) else Origin.FILE
    if base is None:
        return Source(tree, dict.fromkeys(leaves(tree), origin))
    found = _read(find(base), complete, (*above, path.resolve()))
    with found.renamed():
        found.lay(tree, origin)
    return found


def _merge(base: Tree, over: Mapping[str, Any]) -> None:
    for key, value in over.items():
        if isinstance(value, Mapping) and isinstance(base.get(key), dict):
            _merge(base[key], value)
        else:
            base[key] = value


def _parsed(change: str) -> tuple[list[str], Any]:
    """The parts of the key, and the value; None for the bare word none."""
    key, equals, text = change.partition("=")
    path, text = key.strip().split("."), text.strip()
    if not equals or not all(path) or len(path) > _DEEPEST or not _is_text(change):
        raise ConfigError(f"expected a change as key=value, such as training.lr=0.05, got {shown(change)}")
    if text == NONE:
        return path, None
    try:
        return path, _shallow(tomllib.loads(f"value = {text}"))["value"]
    except (ValueError, RecursionError):
        return path, text  # a bare word is a string


def _is_text(given: str) -> bool:
    """Whether it can be written: what is no UTF-8 on a command line arrives as lone surrogates."""
    try:
        return bool(given.encode())
    except UnicodeEncodeError:
        return False


def _naming(tree: Mapping[str, Any]) -> list[Any]:
    """What the name of a run says beside its own."""
    values = _at(tree, [key for key, _ in _NAMING])
    return [value or default for value, (_, default) in zip(values, _NAMING, strict=True)]


def _at(tree: Mapping[str, Any], keys: Iterable[str]) -> list[Any]:
    """The values of keys with at most one dot; None where there is none."""
    found = []
    for key in keys:
        section, _, last = key.rpartition(".")
        table = tree.get(section) if section else tree
        found.append(table.get(last) if isinstance(table, Mapping) else None)
    return found


def is_path(name: str) -> bool:
    """Whether data.name is the path of a file, or code, and not a name of a data set."""
    return code.reference(name) is not None or "/" in name or os.sep in name or name.endswith(".npz")


def _short(value: object) -> str:
    """A part of a name (fl/run/names.py): a path without its folders and suffix, other letters as _."""
    last = code.stem(str(value)).replace("\\", "/").rstrip("/").rpartition("/")[2].removesuffix(".npz")
    return "".join(c if c.isalnum() or c in "._+-" else "_" for c in last[:_LONGEST_PART])
