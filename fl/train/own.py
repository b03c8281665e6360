"""A network of the user's own that a configuration names: a class, or a function that returns one.

It is given what the data is (`sizes`) as far as its signature takes it, and the options of the configuration.
It is made for real and tried with one sample: code of others need not work without memory.
"""

import inspect
from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import torch
from torch import nn

from fl import rng
from fl.config import ConfigError, code
from fl.data import Dataset

_OF_IMAGES = ("in_channels", "size")


def make(
    network: Callable[..., Any], options: Mapping[str, Any], data: Dataset, seed: int, name: str
) -> nn.Module:
    """The network with its first weights, which depend on `seed` alone; torch's random state stays.

    ConfigError: it cannot be made, or tried.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(rng.stream(seed, "weights").integers(2**63)))
        net = _made(network, arguments(network, options, data, name), name)
    _try(net, data, name)
    return net


def arguments(
    network: Callable[..., Any], options: Mapping[str, Any], data: Dataset, name: str
) -> dict[str, Any]:
    """What the network is called with: sizes of the data that it takes, and the options.

    ConfigError: it does not take an option, or needs one that is not there.
    """
    try:
        takes = inspect.signature(network).parameters
    except (TypeError, ValueError) as wrong:
        raise ConfigError(f"model.name: expected a class or function with a signature, got {name}") from wrong
    kinds = {parameter.kind for parameter in takes.values()}
    named = [key for key, one in takes.items() if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    if inspect.Parameter.VAR_KEYWORD not in kinds:
        for key in (key for key in options if key not in named):
            raise ConfigError(f"model.options.{key}: expected options of {name} ({named}), got {key!r}")
    given = {key: size for key, size in sizes(data).items() if key in named} | dict(options)
    empty = inspect.Parameter.empty
    for key in (key for key in named if takes[key].default is empty and key not in given):
        if key in _OF_IMAGES:
            raise ConfigError(
                f"model.name: expected images for {name}, which takes their {key}, got samples of shape "
                f"{tuple(data.shape)} of {data.name}"
            )
        raise ConfigError(f"model.options.{key}: expected a value, which {name} needs, got none")
    return given


def sizes(data: Dataset) -> dict[str, Any]:
    """What a network may be told of its data, by the name of its argument."""
    found: dict[str, Any] = {"num_classes": data.num_classes, "shape": tuple(data.shape)}
    found["in_features"] = prod(data.shape)
    if len(data.shape) == 3:
        channels, height, width = data.shape
        found |= {"in_channels": channels, "size": height if height == width else (height, width)}
    return found


def _made(network: Callable[..., Any], given: dict[str, Any], name: str) -> nn.Module:
    try:
        net = network(**given)
    except ConfigError:
        raise
    except Exception as wrong:
        raise ConfigError(
            f"model.name: expected a network of {name} with {given}, got {code.told(wrong, name)}"
        ) from wrong
    if not isinstance(net, nn.Module):
        raise ConfigError(f"model.name: expected a torch.nn.Module of {name}, got {type(net).__name__}")
    return net


def _try(net: nn.Module, data: Dataset, name: str) -> None:
    """That it makes one number per class of a sample."""
    training = net.training
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        try:
            out = net.eval()(torch.zeros((1, *data.shape)))
        except Exception as wrong:
            raise ConfigError(
                f"model.name: expected a network that takes samples of shape {data.shape} of {data.name}, "
                f"got {name}: {code.told(wrong, name)}"
            ) from wrong
        finally:
            net.train(training)
    if not isinstance(out, torch.Tensor):
        what = type(out).__name__
        raise ConfigError(f"model.name: expected a network that returns a tensor, got a {what} of {name}")
    if tuple(out.shape) != (1, data.num_classes):
        raise ConfigError(
            f"model.name: expected a network with {data.num_classes} outputs per sample, got "
            f"{tuple(out.shape)} of {name}"
        )
