"""Data of the user's own: what a function returns that a configuration names (fl/config/code.py)."""

from fl.config import ConfigError, code
from fl.data.dataset import Dataset
from fl.data.sources import from_given


def from_code(name: str, *, natural: bool = False) -> Dataset:
    """The data that the function called `name` returns; it is called without arguments."""
    function = code.called(name, "data.name").value
    try:
        given = function()
    except (Exception, SystemExit) as wrong:
        raise ConfigError(f"data.name: expected data of {name}, got {code.told(wrong, name)}") from wrong
    try:
        return from_given(given, natural=natural, name=name)
    except ValueError as wrong:
        raise ConfigError(f"data.name: of {name}: {str(wrong).removeprefix('data: ')}") from wrong
