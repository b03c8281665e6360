"""The class that a sparsified network gets: derived from its own, with batch-last images between the layers.

It is made at run time, once per class of a network. Pickle and copy rebuild it from that class.
"""

import copy
import sys
from collections.abc import Callable
from functools import cache
from types import new_class
from typing import Any

import torch
from torch import Tensor, nn

from sparse_engine.nn import precision
from sparse_engine.nn.batch_last import to_images, to_planes
from sparse_engine.nn.intercept import BatchLast


class Wrapped(nn.Module):
    """A mixin before the network's class: makes images batch-last, then calls the network's forward."""

    own_class: type[nn.Module]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if "torch._dynamo" in sys.modules and not _uncompiled:  # importing it takes a second
            _uncompiled.append(torch.compiler.disable(_batch_last))
        run = _uncompiled[0] if _uncompiled else _batch_last
        return run(self, super().forward, args, kwargs)

    def __reduce_ex__(self, protocol: Any) -> Any:
        found: Any = super().__reduce_ex__(protocol)
        make, args, *rest = found
        if args and args[0] is type(self):  # __newobj__: an instance of its class, filled by `rest`
            args = (self.own_class, *args[1:])
        return (_rebuilt, (make, args), *rest)


def wrap(net: nn.Module) -> nn.Module:
    """Give `net` the sparse class of its own class and return it; names and methods stay.

    torch.nn.utils.parametrize changes classes in the same way.
    """
    if not isinstance(net, Wrapped):
        net.__class__ = _class(type(net))  # type: ignore[arg-type]
    return net


def unwrap(net: nn.Module) -> nn.Module:
    """Give `net` its own class back and return it."""
    if isinstance(net, Wrapped):
        net.__class__ = net.own_class  # type: ignore[assignment]
    return net


def _batch_last(
    net: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    chosen = precision.of(net)
    if chosen == "bf16":
        args = tuple(map(precision.rounded, args))
        kwargs = {name: precision.rounded(x) for name, x in kwargs.items()}
    args = tuple(to_images(to_planes(x)) if _is_image(x) else x for x in args)
    with precision.running(chosen), BatchLast(net):
        found = forward(*args, **kwargs)
    return precision.widened(found) if chosen == "bf16" else found


# torch.compile can neither trace the kernels nor what prepares them: under it, the network runs as it is.
_uncompiled: list[Callable[..., Any]] = []


@cache
def _class(own: type[nn.Module]) -> type[nn.Module]:
    body = {"own_class": own, "__module__": own.__module__, "__doc__": own.__doc__}
    if hasattr(own, "__deepcopy__"):  # torch.fx makes classes of its own there: it must see the network's own
        body["__deepcopy__"] = _copied
    return new_class(f"Sparse{own.__name__}", (Wrapped, own), exec_body=lambda space: space.update(body))


def _copied(net: nn.Module, memo: dict[int, Any]) -> nn.Module:
    wrapped = type(net)
    unwrap(net)
    try:
        return wrap(copy.deepcopy(net, memo))
    finally:
        net.__class__ = wrapped


def _rebuilt(make: Callable[..., nn.Module], args: tuple[Any, ...]) -> nn.Module:
    return wrap(make(*args))


def _is_image(x: object) -> bool:
    return isinstance(x, Tensor) and x.dim() == 4 and x.dtype in (torch.float32, torch.bfloat16)
