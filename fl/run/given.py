"""What a call from Python says: as changes of a configuration, as a command line would say them, and as
options of a run."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from fl import algorithms, config
from fl.config import Config, ConfigError, Loaded, code
from fl.config import text as config_text
from fl.run import executor as executors
from fl.run.events import Listener, Several, Warner
from fl.run.loop import Options
from fl.run.meters.energy import How
from fl.train import places

Source = str | Path | Config | Loaded
Changes = Mapping[str, Any] | Iterable[str]


class _Configured:
    """In place of what nobody handed over."""

    def __repr__(self) -> str:
        return "as configured"


CONFIGURED = _Configured()


def loaded(source: Source, changes: list[str]) -> Loaded:
    """The configuration that is meant, with changes."""
    if isinstance(source, str | Path):
        return config.read(source, changes)
    if isinstance(source, Config):
        source = Loaded(source)
    if not isinstance(source, Loaded):
        raise ConfigError(
            f"expected the name of a preset, the path of a TOML file or a Config, got {type(source).__name__}"
        )
    return source._replace(config=config.changed(source.config, changes)) if changes else source


def algorithm(one: str | Path | ModuleType | None) -> list[str]:
    """The change that names an algorithm. The user hands it over: its code may be imported."""
    if one is None:
        return []
    if isinstance(one, str | Path):
        name = str(one)
        if code.reference(name) is not None:
            code.allow(name)
            algorithms.find(name)
    else:
        origin = getattr(one, "__name__", type(one).__name__)
        name = origin.rpartition(".")[2]
        if algorithms.registered().get(name) is not one:
            algorithms.register(name, one, origin)
    return [f"algorithm={config_text.value(name)}"]


def data(one: Any) -> Any:
    """The data that was handed over; None: it is the configuration's. A loader that gave None is refused."""
    if one is None:
        raise ConfigError(
            "data: expected data, got None: what made it returned nothing; leave the argument out to train "
            "on the data of the configuration"
        )
    return None if one is CONFIGURED else one


def changes(given: Changes | None) -> list[str]:
    """KEY=VALUE, each."""
    if given is None:
        return []
    if isinstance(given, str):
        given = [given]
    if isinstance(given, Mapping):
        given = [f"{key}={_value(key, value)}" for key, value in given.items()]
    return [*given]


def _value(key: str, value: Any) -> str:
    if value is None:
        return config.NONE
    if hasattr(value, "item") and not getattr(value, "shape", ()):  # a number of numpy or torch
        value = value.item()
    items = value if isinstance(value, list | tuple) else [value]
    if not all(isinstance(item, str | int | float) for item in items):
        raise ConfigError(f"{key}: expected a number, text or a list, got {type(value).__name__}")
    return config_text.value(value)


def options(
    workers: int | None,
    executor: str,
    listeners: list[Listener],
    progress: bool,
    overwrite: bool,
    energy: bool = False,
    device: str = places.CPU,
    address: str | None = None,
) -> Options:
    """How to run."""
    if workers is not None and workers < 1:
        raise ConfigError(f"workers: expected at least 1, got {workers}")
    executors.find(executor, address=address)
    for one in listeners:
        if not isinstance(one, Listener):
            raise ConfigError(f"listeners: expected objects of fl.Listener, got {type(one).__name__}")
    told = Several([_shown() if progress else Warner(), *listeners])
    measured = How() if energy else None
    return Options(
        workers, told, overwrite, executor=executor, energy=measured, device=device, address=address
    )


def _shown() -> Listener:
    from rich.console import Console

    from fl.cli import display  # only for users who want to see it

    return display.for_console(Console())
