"""Data of the user's own: what a function returns that a configuration names (fl/config/code.py)."""

from collections.abc import Mapping
from typing import Any

from fl.config import ConfigError, code
from fl.data.arrays import from_arrays
from fl.data.dataset import Dataset

_WANTED = (
    "(x, y), (x_train, y_train, x_test, y_test), a dict with arguments of fl.data.from_arrays, or a Dataset"
)


def from_code(name: str, *, natural: bool = False) -> Dataset:
    """The data that the function called `name` returns; it is called without arguments."""
    function = code.called(name, "data.name").value
    try:
        given = function()
    except Exception as wrong:
        raise ConfigError(f"data.name: expected data of {name}, got {code.told(wrong, name)}") from wrong
    try:
        return _dataset(given, name, natural)
    except (ValueError, TypeError) as wrong:
        raise ConfigError(f"data.name: of {name}: {wrong}") from wrong


def _dataset(given: Any, name: str, natural: bool) -> Dataset:
    if isinstance(given, Dataset):
        return given
    if isinstance(given, tuple | list) and len(given) in (2, 4):
        return from_arrays(*given, name=name, natural=natural)
    if isinstance(given, Mapping) and {"x", "y"} <= given.keys():
        return from_arrays(**{"name": name, "natural": natural, **given})
    what = f"{len(given)} values" if isinstance(given, tuple | list) else type(given).__name__
    raise ValueError(f"expected {_WANTED}, got {what}")
