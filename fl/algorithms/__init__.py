"""The algorithms, one file each: a module here with `Config`, `init` and `run_round` is one."""

import importlib
import pkgutil
from functools import cache

from fl.algorithms.base import Algorithm


@cache
def registered() -> dict[str, Algorithm]:
    """{name: module}, in alphabetical order."""
    names = [found.name for found in pkgutil.iter_modules(__path__)]
    modules = {name: importlib.import_module(f"{__name__}.{name}") for name in names}
    return {name: module for name, module in modules.items() if isinstance(module, Algorithm)}
