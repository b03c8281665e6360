"""What somebody hands over from Python in place of what the configuration names: network, data, partition."""

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn

from fl.config import Config, ConfigError
from fl.data import Dataset, Partition, partition_by_lists
from fl.train import own

_KEY = "network"  # of messages: the argument of fl.Simulation
_DIVIDED = ", own partition"
_NAMED = "<{}>"  # such a name is no file, no module and no data set: nobody takes it for one


@dataclass(frozen=True)
class Own:
    """None: as the configuration says."""

    network: nn.Module | Callable[..., nn.Module] | None = None
    data: Any = None
    partition: Any = None  # lists of samples per client, a Partition, or a function that makes one of these

    def named(self, cfg: Config) -> Config:
        """`cfg` with names of what is given, and without the options of the network that it named."""
        changes: dict[str, Any] = {}
        if self.network is not None:
            name = _NAMED.format(name_of(self.network))
            changes["model"] = type(cfg.model)(name=name, exempt=cfg.model.exempt)
        if self.data is not None or self.partition is not None:
            shown = named_data(cfg) if self.data is None else _NAMED.format(_data_name(self.data))
            if self.partition is not None:
                shown = _NAMED.format(shown + _DIVIDED)
            root = cfg.data.root if self.data is None else None
            changes["data"] = cfg.data.model_copy(update={"name": shown, "root": root})
        if changes:
            changes["description"] = ""  # of what was there before
        return cfg.model_copy(update=changes)

    def check_changes(self, keys: Iterable[str]) -> None:
        """ConfigError where one of the `keys` that somebody changed is of what is given in its place."""
        wrong = [key for key in keys if key.startswith("model.") and key != "model.exempt"]
        if self.network is not None and wrong:
            raise ConfigError(
                f"{wrong[0]}: expected no such change beside {_KEY}=..., which takes the place of [model]: "
                f"give options with functools.partial({name_of(self.network)}, ...), or the network by name"
            )


NOTHING = Own()


def check_named(cfg: Config, own: Own) -> None:
    """ConfigError where a run was started with something from Python that is not given now."""
    whole, data = cfg.data.name, named_data(cfg)
    told = {
        "network": (cfg.model.name, own.network),
        "data": (data, own.data),
        "partition": (whole if whole != data else "", own.partition),
    }
    for what, (name, given) in told.items():
        if name.startswith("<") and given is None:
            raise ConfigError(
                f"expected {what} {name[1:-1]}, with which the run was started from Python, got none: "
                f"hand it over with {what}=..."
            )


def named_data(cfg: Config) -> str:
    """The name of the data set, whoever divided it."""
    name = cfg.data.name
    return name[1:-1].removesuffix(_DIVIDED) if name.endswith(f"{_DIVIDED}>") else name


def divided(given: Any, data: Dataset, cfg: Config) -> Partition:
    """The partition that was handed over: one list of training samples per client."""
    if callable(given):
        given = given(data, cfg.num_clients, cfg.seed)
    if not isinstance(given, Partition):
        try:
            lists = [*given]
        except TypeError:
            raise ConfigError(
                f"partition: expected a list of samples per client, got {_kind(given)}"
            ) from None
        _check_clients(len(lists), cfg)
        try:
            given = partition_by_lists(data, lists, test_per_client=cfg.data.test_per_client, seed=cfg.seed)
        except ValueError as wrong:
            raise ConfigError(f"partition: {wrong}") from wrong
    _check_clients(given.num_clients, cfg)
    return given


def _check_clients(there: int, cfg: Config) -> None:
    if there != cfg.num_clients:
        raise ConfigError(
            f"partition: expected samples of num_clients = {cfg.num_clients} clients, got those of {there}"
        )


def network(given: nn.Module | Callable[..., nn.Module], data: Dataset, seed: int) -> nn.Module:
    """The network that was handed over, with one output per class of the data.

    A class or function is called with those of `num_classes`, `in_channels`, `in_features`, `shape` and
    `size` (pixels of a side; (height, width) where these differ) that it has arguments for. Its weights
    depend on `seed` alone; those of a module that is ready are copied.
    """
    if isinstance(given, nn.Module):
        own.check(given, data, name_of(given), _KEY)
        return copy.deepcopy(given)
    if not callable(given):
        raise ConfigError(
            f"{_KEY}: expected a torch module, or a class or function that makes one, got {_kind(given)}"
        )
    return own.make(given, {}, data, seed, name_of(given), _KEY)


def name_of(given: Any) -> str:
    """What a network is called: a class or function by its own name, others by that of their class."""
    given = given.func if isinstance(given, partial) else given
    return getattr(given, "__name__", None) or type(given).__name__


def _data_name(given: Any) -> str:
    own = getattr(given, "name", None)
    return own if isinstance(own, str) else type(given).__name__


def _kind(given: Any) -> str:
    return f"{type(given).__name__} {str(given)[:60]}"
