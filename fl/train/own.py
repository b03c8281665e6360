"""A network of the user's own, named or handed over: a class, or a function that returns one.

It is given what the data is (`sizes`) as far as its signature takes it, and the options of the configuration.
It is made for real and tried with two samples: code of others need not work without memory.
"""

import copy
import inspect
from collections.abc import Callable, Mapping
from math import prod
from typing import Any, NoReturn

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from fl import rng
from fl.config import ConfigError, code
from fl.data import Dataset

_OF_IMAGES = ("in_channels", "size")
_TRIED = 2  # samples: one is too few for BatchNorm


def make(
    network: Callable[..., Any],
    options: Mapping[str, Any],
    data: Dataset,
    seed: int,
    name: str,
    key: str = "model.name",
) -> nn.Module:
    """The network with its first weights, which depend on `seed` alone; torch's random state stays.

    ConfigError, which begins with `key`: it cannot be made, or does not fit the data.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(rng.stream(seed, "weights").integers(2**63)))
        net = _made(network, arguments(network, options, data, name, key), name, key)
    check(net, data, name, key)
    return net


def check(net: nn.Module, data: Dataset, name: str, key: str = "model.name") -> None:
    """ConfigError where it does not make one number per class of a sample, in training as in evaluation."""
    if lazy := [path for path, p in net.named_parameters() if is_lazy(p)]:
        raise ConfigError(
            f"{key}: expected a network that knows its shapes, got {name} with lazy {', '.join(lazy)}: "
            f"it may take them as arguments, out of {list(sizes(data))}"
        )
    for training in (False, True):
        made = _output(net, data, name, key, training)
        when = " in training" if training else ""
        if not isinstance(made, torch.Tensor):
            what = f"a {type(made).__name__} of {name}{when}"
            raise ConfigError(f"{key}: expected a network that returns a tensor, got {what}")
        if tuple(made.shape) != (_TRIED, data.num_classes):
            raise ConfigError(
                f"{key}: expected a network with {data.num_classes} outputs per sample, one per class of "
                f"{data.name}, got {tuple(made.shape)} for {_TRIED} samples of {name}{when}"
            )


def arguments(
    network: Callable[..., Any], options: Mapping[str, Any], data: Dataset, name: str, key: str = "model.name"
) -> dict[str, Any]:
    """What the network is called with: sizes of the data that it takes, and the options.

    ConfigError: it does not take an option, or needs one that is not there.
    """
    try:
        takes = inspect.signature(network).parameters
    except (TypeError, ValueError) as wrong:
        raise ConfigError(f"{key}: expected a class or function with a signature, got {name}") from wrong
    kinds = {parameter.kind for parameter in takes.values()}
    named = [one.name for one in takes.values() if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    if inspect.Parameter.VAR_KEYWORD not in kinds:
        for one in (one for one in options if one not in named):
            raise ConfigError(f"model.options.{one}: expected options of {name} ({named}), got {one!r}")
    given = {one: size for one, size in sizes(data).items() if one in named} | dict(options)
    for one in (one for one in named if takes[one].default is takes[one].empty and one not in given):
        _refuse_without(one, data, name, key)
    return given


def _refuse_without(argument: str, data: Dataset, name: str, key: str) -> NoReturn:
    """ConfigError: nobody knows an argument that the network needs."""
    if argument in _OF_IMAGES:
        raise ConfigError(
            f"{key}: expected images for {name}, which takes their {argument}, got samples of shape "
            f"{tuple(data.shape)} of {data.name}"
        )
    if key == "model.name":
        raise ConfigError(f"model.options.{argument}: expected a value, which {name} needs, got none")
    raise ConfigError(
        f"{key}: expected arguments out of {list(sizes(data))}, or with a default, got {argument!r} of "
        f"{name}: give it one with functools.partial({name}, {argument}=...)"
    )


def sizes(data: Dataset) -> dict[str, Any]:
    """What a network may be told of its data, by the name of its argument."""
    found: dict[str, Any] = {"num_classes": data.num_classes, "shape": tuple(data.shape)}
    found["in_features"] = prod(data.shape)
    if len(data.shape) == 3:
        channels, height, width = data.shape
        found |= {"in_channels": channels, "size": height if height == width else (height, width)}
    return found


def _made(network: Callable[..., Any], given: dict[str, Any], name: str, key: str) -> nn.Module:
    try:
        net = network(**given)
    except ConfigError:
        raise
    except (Exception, SystemExit) as wrong:
        raise ConfigError(
            f"{key}: expected a network of {name} with {given}, got {code.told(wrong, name)}"
        ) from wrong
    if not isinstance(net, nn.Module):
        raise ConfigError(f"{key}: expected a torch.nn.Module of {name}, got {type(net).__name__}")
    return net


def _output(net: nn.Module, data: Dataset, name: str, key: str, training: bool) -> Any:
    """What a copy of it makes of a few samples."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        try:
            return copy.deepcopy(net).train(training)(torch.zeros((_TRIED, *data.shape)))
        except Exception as wrong:
            when = "trains on" if training else "takes"
            raise ConfigError(
                f"{key}: expected a network that {when} samples of shape {tuple(data.shape)} of {data.name}, "
                f"got {name}: {code.told(wrong, name)}"
            ) from wrong
