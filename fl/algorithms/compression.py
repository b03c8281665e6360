"""C of compressed gossip: what is left of a difference between two models when it has travelled.

    gsgd      b bits per number, unbiased, damped to be a contraction (sparse_engine.wire.quantised)
    top_k     the share `keep` of the prunable weights, largest first, as a sparse message; biases, norms and
              exempt weights whole, as in every message (sparse_engine.wire)
    identity  everything

`messages.values` holds for top_k and identity. Bytes are those of messages that were written and read again;
the paper's count is b bits per number, or 4 bytes per stored one.
"""

from math import ceil
from typing import Annotated, Literal, NamedTuple

import torch
from pydantic import Field

import sparse_engine as se
from fl.config import Messages, Section, only_if
from fl.errors import Diverged
from sparse_engine.wire import quantised


class Compression(Section):
    kind: Literal["gsgd", "top_k", "identity"] = "gsgd"
    """numbers in a few bits, unbiased; the largest alone; everything"""
    bits: Annotated[int, Field(ge=quantised.BITS[0], le=quantised.BITS[-1]), only_if(kind="gsgd")] = 8
    """of a number; 8 in both vectors are half a dense message, as the paper counts BEER"""
    keep: Annotated[float, Field(gt=0, le=1), only_if(kind="top_k")] = 0.25
    """share of the weights that travels"""


class Compressed(NamedTuple):
    """What arrives, on the pattern of what was sent, and its bytes: real, the paper's count, dense."""

    model: se.Model
    sizes: tuple[int, int, int]


def compress(
    x: se.Model, cfg: Compression, messages: Messages, generator: torch.Generator, sender: int, t: int
) -> Compressed:
    """C(x); `x` stores every entry."""
    numbers = x.values.numel() + x.rest.numel()
    try:
        if cfg.kind == "gsgd":
            blob = quantised.encode(x, cfg.bits, generator)
            arrived = se.combine([quantised.decode(blob, like=x)], [1 / quantised.damping(cfg.bits)])
            return Compressed(arrived, (len(blob), ceil(numbers * cfg.bits / 8), 4 * numbers))
        sparse = largest(x, cfg.keep) if cfg.kind == "top_k" else x
        blob = se.wire.encode(sparse, sender=sender, round=t, values=messages.values)
    except ValueError as wrong:
        raise Diverged(f"client {sender} in round {t} cannot send what it has: {wrong}") from wrong
    arrived = se.wire.decode(blob, like=x).with_pattern(x.bitmap)
    counted = 4 * (sparse.values.numel() + x.rest.numel())
    return Compressed(arrived, (len(blob), counted, 4 * numbers))


def largest(x: se.Model, keep: float) -> se.Model:
    """The share `keep` of the weights with the largest |x|, at least one."""
    layout, kept = x.layout, torch.zeros(x.values.numel(), dtype=torch.bool)
    count = min(max(ceil(keep * len(kept)), 1), len(kept))
    kept[x.values.abs().topk(count, sorted=False).indices] = True
    parts = kept.split(list(layout.segments.sizes))
    masks = {n: part.view(s) for n, s, part in zip(layout.names, layout.shapes, parts, strict=True)}
    return x.with_pattern(layout.bitmap_of(masks))
