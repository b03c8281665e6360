"""The network that a configuration names, sized for its data, with the w0 that all clients start from.

Before it is made it is made once without memory (torch's "meta" device): one that would not fit, or cannot
take the data's samples or batches, is refused with a sentence and not in the middle of a run.
"""

import copy
import inspect
from collections.abc import Collection, Sequence
from math import prod
from typing import Any

import torch
from torch import nn

import sparse_engine as se
from fl import rng
from fl.config import ConfigError, Model, code, words
from fl.data import Dataset, memory
from fl.train import own

_OPTIONS = ("norm", "width", "hidden", "dropout")
_SIDES = range(1, 257)  # pixels: where to look for images that a network can take


def build(model: Model, data: Dataset, seed: int) -> nn.Module:
    """w0 depends on `seed` and the network alone; torch's own random state is left as it was."""
    names = [name for name in se.models.__all__ if name != "by_name"]
    installed = {} if model.name in names else code.installed("model.name")
    if code.reference(model.name) is not None or model.name in installed:
        found = code.called(model.name, "model.name").value
        return own.make(found, model.options, data, seed, model.name)
    if model.name not in names:
        known = [*names, *installed]
        raise ConfigError(
            f"model.name: expected a network out of {known}, FILE.py:NAME or package.module:NAME, "
            f"got {model.name!r}{words.nearest(model.name, known)}"
        )
    takes = inspect.signature(getattr(se.models, model.name)).parameters
    options = _options(model, list(takes))
    sizes = {
        "in_channels": data.shape[0],
        "in_features": prod(data.shape),
        "num_classes": data.num_classes,
    }
    options |= {name: size for name, size in sizes.items() if name in takes}
    _check(model.name, _weightless(model.name, options), data)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(rng.stream(seed, "weights").integers(2**63)))
        return se.models.by_name(model.name, **options)


def check_batches(net: nn.Module, data: Dataset, sizes: Collection[int], batch_size: int) -> None:
    """ConfigError where a client with one of these numbers of samples has a batch that `net` cannot train on:
    BatchNorm has no deviation of a single value per channel."""
    alone = sorted(n for n in set(sizes) if n % batch_size == 1 or batch_size == 1)
    if not alone or not any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in net.modules()):
        return
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            copy.deepcopy(net).train()(torch.zeros((1, *data.shape)))
    except ValueError as wrong:
        raise ConfigError(
            f"training.batch_size: expected no batch of one sample, because BatchNorm needs two values per "
            f"channel, got batches of {batch_size} with {alone[0]} samples per client: change batch_size or "
            "data.train_per_client, or take model.norm = group"
        ) from wrong


def _options(model: Model, takes: list[str]) -> dict[str, Any]:
    given = {name: getattr(model, name) for name in _OPTIONS if getattr(model, name) is not None}
    wrong = {name: value for name, value in given.items() if name not in takes}
    if wrong:
        (name, value), *_ = wrong.items()
        able = [option for option in _OPTIONS if option in takes]
        raise ConfigError(f"model.{name}: expected options of {model.name} ({able}), got {name} = {value!r}")
    return given


def _weightless(name: str, options: dict[str, Any]) -> nn.Module:
    """The network without memory for its weights."""
    try:
        with torch.device("meta"):
            return se.models.by_name(name, **options)
    except (RuntimeError, OverflowError, MemoryError) as wrong:
        raise ConfigError(f"model: expected a network that can be made, got {name} with {options}") from wrong


def _check(name: str, net: nn.Module, data: Dataset) -> None:
    """That it fits into memory, and makes one number per class of the data's samples."""
    num_bytes = sum(x.numel() * x.element_size() for x in net.state_dict().values())
    try:
        memory.check(4 * num_bytes, f"{name} with {num_bytes // 4:,} weights, four times,")
    except ValueError as wrong:
        raise ConfigError(f"model: {wrong}") from wrong
    made = _output(net, data.shape)
    if made is None:
        raise ConfigError(_not_for(name, net, data))
    if made != (1, data.num_classes):
        raise ConfigError(
            f"model.name: expected a network with {data.num_classes} outputs per sample, got {made} of {name}"
        )


def _not_for(name: str, net: nn.Module, data: Dataset) -> str:
    """Why the network cannot take the data."""
    if not data.is_image:
        return (
            f"model.name: expected a network for samples of shape {data.shape} of {data.name}, got {name}, "
            "which cannot take them: mlp takes any shape, other networks images [channels, height, width]"
        )
    channels, height, width = data.shape
    return (
        f"model.name: expected images {_sides(net, channels)} for {name}, got {height} x {width} of "
        f"{data.name}: take another network, or resize them with data.size"
    )


def _output(net: nn.Module, shape: Sequence[int]) -> tuple[int, ...] | None:
    """The shape of what one sample becomes; None where the network cannot take it."""
    try:
        with torch.no_grad():
            return tuple(net.eval()(torch.empty((1, *shape), device="meta")).shape)
    except (RuntimeError, ValueError):
        return None


def _sides(net: nn.Module, channels: int) -> str:
    """Which square images the network can take, in words."""
    able = [side for side in _SIDES if _output(net, (channels, side, side)) is not None]
    if not able:
        return "of another kind"
    if able[-1] == _SIDES[-1]:
        return f"of at least {able[0]} x {able[0]}"
    return f"from {able[0]} x {able[0]} to {able[-1]} x {able[-1]}"
