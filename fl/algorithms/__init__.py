"""The algorithms: modules with `Config`, `init` and `run_round`.

One file each in this package; those that installed packages bring (entry points "sparsefl.algorithms"); and
files of the user's own (fl/config/code.py), known by their name without .py once they are named.
"""

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache
from typing import Any

from fl.algorithms.base import Algorithm
from fl.config import Config, Section, code
from fl.errors import ConfigError

_KEY = "algorithm"
_own: dict[str, Algorithm] = {}


def registered() -> dict[str, Algorithm]:
    """{name: module}: those of this package in alphabetical order, those of others, and the user's own."""
    return {**shipped(), **installed(), **_own}


def find(name: str) -> Algorithm:
    """The algorithm that a configuration names; a file is imported. ConfigError: it is none."""
    if code.reference(name) is None:
        if name in code.installed(_KEY) and name not in registered():
            _checked(code.load(name, _KEY).value, name)  # says what is wrong with it
        return registered()[name]
    register(code.stem(name), code.load(name, _KEY).value, name)
    return _own[code.stem(name)]


def register(name: str, algorithm: Any, origin: str) -> None:
    """Make an algorithm of the user's own known by `name`, in place of an earlier one of that name."""
    taken = {*shipped(), *installed(), *Config.model_fields, "extends"}
    if name in taken or not name.isidentifier() or hasattr(Config, name):
        raise ConfigError(
            f"{_KEY}: expected a file whose name can be that of a new section, got {origin}: take letters, "
            f"digits and _, and none of {sorted(taken)}"
        )
    _own[name] = _checked(algorithm, origin)


def forget() -> None:
    """Forget the user's own algorithms."""
    _own.clear()


@cache
def shipped() -> dict[str, Algorithm]:
    """Return the algorithms of this package, by name."""
    names = [found.name for found in pkgutil.iter_modules(__path__)]
    modules = {name: importlib.import_module(f"{__name__}.{name}") for name in names}
    return {name: module for name, module in modules.items() if isinstance(module, Algorithm)}


@cache
def installed() -> Mapping[str, Algorithm]:
    """Return the algorithms of other packages, by name. Skip those that cannot be imported."""
    found = {}
    for name in code.installed(_KEY).keys() - shipped().keys() - Config.model_fields.keys():
        try:
            found[name] = _checked(code.load(name, _KEY).value, name)
        except ConfigError:
            continue
    return dict(sorted(found.items()))


def _checked(algorithm: Any, origin: str) -> Algorithm:
    lacks = [part for part in ("Config", "init", "run_round") if not hasattr(algorithm, part)]
    if lacks:
        raise ConfigError(
            f"{_KEY}: expected Config, init(env) and run_round(state, t, env) in {origin}, "
            f"got no {' and no '.join(lacks)}"
        )
    section = algorithm.Config
    if not (isinstance(section, type) and issubclass(section, Section)):
        raise ConfigError(
            f"{_KEY}: expected a subclass of fl.config.Section, got {section!r} as Config of {origin}"
        )
    for part in ("init", "run_round"):
        if not callable(getattr(algorithm, part)):
            raise ConfigError(
                f"{_KEY}: expected a function {part} in {origin}, got {getattr(algorithm, part)!r}"
            )
    try:
        section()
    except ValueError as wrong:
        lines = str(wrong).splitlines()
        raise ConfigError(
            f"{_KEY}: expected a default of every key of Config in {origin}, got {'; '.join(lines[1:3])}"
        ) from wrong
    found: Algorithm = algorithm
    return found
