"""Code of the user's own that a configuration names, and whether it may be imported.

    nets.py:TinyNet             a name in a file; the path is taken from the working directory
    package.module:TinyNet      a name in a module that Python can import
    mine.py                     a whole file: an algorithm
    tiny                        an entry point of an installed package (`ENTRY_POINTS`)

To import is to run. What somebody names on a command line or in a file of theirs they want to run (`allow`);
what a run directory names may be somebody else's, and is refused (`load`) until the user names it again, or
trusts the directory (`trust`). What was allowed stays so for this process.
"""

import hashlib
import importlib
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from fl.errors import ConfigError, UntrustedError

ENTRY_POINTS = {  # key: group
    "algorithm": "sparsefl.algorithms",
    "model.name": "sparsefl.networks",
    "executor": "sparsefl.executors",  # an option of commands and calls, of no configuration
}
KEYS = ("algorithm", "data.name", "model.name")  # those that may name code
_SUFFIX = ".py"


class Reference(NamedTuple):
    """Where code is: a file or a module, and a name in it ("": all of it)."""

    source: str
    name: str

    @property
    def is_file(self) -> bool:
        return self.source.endswith(_SUFFIX)

    @property
    def path(self) -> Path:
        return Path(self.source).expanduser()


class Loaded(NamedTuple):
    """Code that was imported: the value of its name, what it comes from, and SHA-256 of that ("": none)."""

    value: Any
    origin: str
    sha256: str


_modules: dict[str, tuple[ModuleType, str]] = {}  # files that ran, by path, with their hash
_allowed: set[str] = set()
_ALL = "*"
_OURS = ("fl", "sparse_engine", "kernels", "sparsefl")  # folders


def reference(text: str) -> Reference | None:
    """What `text` refers to; None: it is no code, but a name of something built in or installed.

    >>> reference("nets.py:TinyNet")
    Reference(source='nets.py', name='TinyNet')
    >>> reference("digits") is None
    True
    """
    source, colon, name = text.rpartition(":")
    module = all(part.isidentifier() for part in source.split("."))
    if colon and name.isidentifier() and (module or source.endswith(_SUFFIX)):
        return Reference(source, name)
    return Reference(text, "") if text.endswith(_SUFFIX) and text != _SUFFIX else None


def named(tree: Mapping[str, Any]) -> dict[str, str]:
    """{key: name} of the code that a configuration names, as plain values: nothing is imported for it."""
    values: dict[str, Any] = {}
    for key in KEYS:
        section, _, last = key.rpartition(".")
        table = tree.get(section) if section else tree
        values[key] = table.get(last) if isinstance(table, Mapping) else None
    return {key: x for key, x in values.items() if isinstance(x, str) and reference(x) is not None}


def stem(name: str) -> str:
    """The section of an algorithm: a file's name without folders and suffix, else the name itself."""
    found = reference(name)
    return found.path.stem if found is not None and found.is_file else name


def allow(text: str) -> None:
    """The user named this code: `nets.py`, `nets.py:TinyNet` or `package.module`."""
    _allowed.add(_key(reference(text) or Reference(text, "")))


def trust() -> None:
    """The user trusts whatever is named from now on."""
    _allowed.add(_ALL)


def allow_named(names: Iterable[str], everything: bool) -> None:
    """What a command line allows: `--code NAME`, or `--trust` for everything. ConfigError: a name is none."""
    for name in names:
        path = Path(name).expanduser()
        if name.endswith(_SUFFIX) and not path.is_file():
            raise ConfigError(
                f"--code: expected a file of Python, got {name}: there is no file {path.absolute()}"
            )
        allow(name)
    if everything:
        trust()


def forget() -> None:
    """Nothing is allowed any more."""
    _allowed.clear()


def load(text: str, key: str) -> Loaded:
    """The code that the key of a configuration names. ConfigError: it cannot be imported, or has no such
    name; UntrustedError: nobody allowed it."""
    found = reference(text)
    if found is None:
        return _installed(text, key)
    if not {_key(found), _ALL} & _allowed:
        raise UntrustedError(
            f"{key}: expected that you allow to import {found.source}, which a run directory names and which "
            f"may be somebody else's: look at it, then say --code {found.source}, or --trust for all of it "
            f"(in Python: fl.load(..., code=[{found.source!r}]))"
        )
    module, sha256 = _file(found, key) if found.is_file else _module(found, key)
    if not found.name:
        return Loaded(module, found.source, sha256)
    if not hasattr(module, found.name):
        there = {name: x for name, x in vars(module).items() if not name.startswith("_")}
        names = [name for name, x in there.items() if not isinstance(x, ModuleType)]
        raise ConfigError(f"{key}: expected a name in {found.source} out of {names}, got {found.name!r}")
    return Loaded(getattr(module, found.name), found.source, sha256)


def called(text: str, key: str) -> Loaded:
    """`load`, of something that can be called."""
    found = load(text, key)
    if not callable(found.value):
        what = type(found.value).__name__
        raise ConfigError(f"{key}: expected a class or a function, got {text}, which is of type {what}")
    return found


@cache
def installed(key: str) -> dict[str, EntryPoint]:
    """The entry points of installed packages for a key, by name."""
    return {point.name: point for point in entry_points(group=ENTRY_POINTS[key])}


def told(wrong: BaseException, source: str) -> str:
    """An error of the user's code in a sentence, with the last line of `source` that it came through."""
    lines = str(wrong).strip().splitlines()
    message = f"{type(wrong).__name__}: {lines[0]}" if lines else type(wrong).__name__
    if isinstance(wrong, SyntaxError) and wrong.filename:
        return f"{Path(wrong.filename).name}, line {wrong.lineno}: {type(wrong).__name__}: {wrong.msg}"
    found = reference(source)
    frames = [one for one in traceback.extract_tb(wrong.__traceback__) if not one.filename.startswith("<")]
    own = [one for one in frames if found and one.filename == _file_of(found)]
    return f"{Path(own[-1].filename).name}, line {own[-1].lineno}: {message}" if own else message


def blamed(wrong: BaseException) -> str | None:
    """`told` of an error that a file of the user's own raised, or torch below it; None: it is one of ours."""
    ours = str(Path(__file__).parents[2])
    for frame in reversed(traceback.extract_tb(wrong.__traceback__)):
        if frame.filename in _modules:
            return told(wrong, frame.filename)
        if any(frame.filename.startswith(f"{ours}/{package}/") for package in _OURS):
            return None
    return None


def own_modules() -> list[ModuleType]:
    """The files that were imported, and still are."""
    return [module for module, _ in _modules.values() if sys.modules.get(module.__name__) is module]


def _key(found: Reference) -> str:
    return str(found.path.absolute()) if found.is_file else found.source


def _file_of(found: Reference) -> str | None:
    module = None if found.is_file else sys.modules.get(found.source)
    return str(found.path.absolute()) if found.is_file else getattr(module, "__file__", None)


def _installed(name: str, key: str) -> Loaded:
    points = installed(key) if key in ENTRY_POINTS else {}
    if name not in points:
        raise ConfigError(f"{key}: expected code as FILE.py:NAME or package.module:NAME, got {name!r}")
    point = points[name]
    origin = f"{point.dist.name} {point.dist.version}" if point.dist else point.value
    try:
        value = point.load()
    except (Exception, SystemExit) as wrong:  # anything, for it is another's
        raise ConfigError(f"{key}: expected {name} of {origin}, got {told(wrong, point.value)}") from wrong
    module = sys.modules.get(point.value.partition(":")[0])
    return Loaded(value, origin, _sha256_of(getattr(module, "__file__", None)))


def _module(found: Reference, key: str) -> tuple[ModuleType, str]:
    try:
        with _importing_from(Path.cwd()):
            module = importlib.import_module(found.source)
    except (Exception, SystemExit) as wrong:
        raise ConfigError(
            f"{key}: expected a module that can be imported, got {found.source}: {told(wrong, found.source)}"
        ) from wrong
    return module, _sha256_of(getattr(module, "__file__", None))


def _file(found: Reference, key: str) -> tuple[ModuleType, str]:
    """The file as a module. It runs anew when it has changed; what ran is what the hash is of."""
    path = found.path.absolute()
    try:
        text = path.read_bytes()
    except OSError as wrong:
        raise ConfigError(
            f"{key}: expected a file of Python, got {found.source}: {wrong.strerror} ({path})"
        ) from None
    sha256 = hashlib.sha256(text).hexdigest()
    if _modules.get(str(path), (None, ""))[1] != sha256:
        _modules[str(path)] = _executed(found, path, text, key), sha256
    return _modules[str(path)]


def _executed(found: Reference, path: Path, text: bytes, key: str) -> ModuleType:
    unique = hashlib.sha256(str(path).encode()).hexdigest()[:8]
    module = ModuleType(f"own_{unique}_{path.stem}")
    module.__file__ = str(path)
    before = sys.modules.get(module.__name__)
    sys.modules[module.__name__] = module  # dataclasses and type hints look there
    try:
        with _importing_from(path.parent):
            exec(compile(text, str(path), "exec"), module.__dict__)
    except (Exception, SystemExit) as wrong:
        sys.modules.pop(module.__name__)
        if before is not None:
            sys.modules[module.__name__] = before
        raise ConfigError(
            f"{key}: expected code that can be imported, got {told(wrong, found.source)}"
        ) from wrong
    return module


def _sha256_of(file: str | None) -> str:
    try:
        return hashlib.sha256(Path(file).read_bytes()).hexdigest() if file else ""
    except OSError:
        return ""


@contextmanager
def _importing_from(folder: Path) -> Iterator[None]:
    """What lies beside a file can be imported while it is."""
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        if str(folder) in sys.path:
            sys.path.remove(str(folder))
