"""The network that a configuration names, sized for its data, with the w0 that all clients start from."""

import inspect
from typing import Any

import torch
from torch import nn

import sparse_engine as se
from fl import rng
from fl.config import ConfigError, Model
from fl.data import Dataset

_OPTIONS = ("norm", "width", "hidden", "dropout")


def build(model: Model, data: Dataset, seed: int) -> nn.Module:
    """w0 depends on `seed` and the network alone; torch's own random state is left as it was."""
    names = [name for name in se.models.__all__ if name != "by_name"]
    if model.name not in names:
        raise ConfigError(f"model.name: expected a network out of {names}, got {model.name!r}")
    takes = inspect.signature(getattr(se.models, model.name)).parameters
    options = _options(model, list(takes))
    channels, height, width = data.shape
    sizes = {
        "in_channels": channels,
        "in_features": channels * height * width,
        "num_classes": data.num_classes,
    }
    options |= {name: size for name, size in sizes.items() if name in takes}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(rng.stream(seed, "weights").integers(2**63)))
        return se.models.by_name(model.name, **options)


def _options(model: Model, takes: list[str]) -> dict[str, Any]:
    given = {name: getattr(model, name) for name in _OPTIONS if getattr(model, name) is not None}
    wrong = {name: value for name, value in given.items() if name not in takes}
    if wrong:
        (name, value), *_ = wrong.items()
        able = [option for option in _OPTIONS if option in takes]
        raise ConfigError(f"model.{name}: expected options of {model.name} ({able}), got {name} = {value!r}")
    return given
