"""The precision of a network's activations: a word in the network, and a context while its forward runs.

fp32   everything is float32
bf16   activations and their gradients are bfloat16; weights, their gradients, sums, statistics of norms and
       what the network returns are float32
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn

PRECISIONS = ("fp32", "bf16")
NAME = "_precision"  # of a network from `sparsify`
_running: ContextVar[str] = ContextVar("precision", default="fp32")


def check(precision: str, net: nn.Module) -> None:
    """Raise a ValueError if it is none, or not possible for `net`."""
    if precision not in PRECISIONS:
        raise ValueError(f"expected a precision of {PRECISIONS}, got {precision!r}")
    others = {str(p.dtype) for p in net.parameters() if p.dtype != torch.float32}
    if precision == "bf16" and others:
        raise ValueError(f"expected float32 weights for precision bf16, got {', '.join(sorted(others))}")


def mark(net: nn.Module, precision: str) -> nn.Module:
    """Write the precision into `net` and return it."""
    net.__dict__[NAME] = precision
    return net


def of(net: nn.Module) -> str:
    """Return the precision that `net` runs in."""
    return net.__dict__.get(NAME, "fp32")


def is_bf16() -> bool:
    """Whether a network runs whose activations are bfloat16."""
    return _running.get() == "bf16"


@contextmanager
def running(precision: str) -> Iterator[None]:
    """A context in which layers compute in this precision; torch's own by its autocast."""
    token = _running.set(precision)
    try:
        if precision == "bf16":
            with torch.autocast("cpu", torch.bfloat16):
                yield
        else:
            yield
    finally:
        _running.reset(token)


def rounded(x: Any) -> Any:
    """What goes into a bf16 network: float32 tensors as bfloat16."""
    return x.to(torch.bfloat16) if isinstance(x, Tensor) and x.dtype == torch.float32 else x


def widened(x: Any) -> Any:
    """What comes out of it: bfloat16 tensors as float32, also in tuples, lists and dicts."""
    if isinstance(x, Tensor):
        return x.float() if x.dtype == torch.bfloat16 else x
    if type(x) in (tuple, list):
        return type(x)(widened(each) for each in x)
    if type(x) is dict:
        return {key: widened(each) for key, each in x.items()}
    return x
