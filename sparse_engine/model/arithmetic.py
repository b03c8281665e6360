"""Sums of models that store the same entries: mixing, differences, gradient steps; and parts of models.

combine([a, b], [1, -1]) = a - b            on values and rest;  integer buffers are those of the first
zeros(a)                                    the same pattern, every number 0
overlay(a, b)                               b where it stores an entry, else a
"""

from collections.abc import Sequence
from dataclasses import replace

import torch

from sparse_engine.model.average import same_layout
from sparse_engine.model.model import Model


def combine(states: Sequence[Model], weights: Sequence[float]) -> Model:
    """sum_i weights[i] states[i], in the order given, in float32, in memory of its own."""
    if not states or len(states) != len(weights):
        raise ValueError(
            f"expected a weight for each of at least one state, got {len(states)}, {len(weights)}"
        )
    first = states[0]
    for i, state in enumerate(states):
        same_layout(first, state, f"states[{i}]")
        if state.bitmap is not first.bitmap and not torch.equal(state.bitmap.words, first.bitmap.words):
            raise ValueError(f"expected states with one pattern, got another in states[{i}]")
    values, rest = first.values * weights[0], first.rest * weights[0]
    for state, weight in zip(states[1:], weights[1:], strict=True):
        values.add_(state.values, alpha=weight)
        rest.add_(state.rest, alpha=weight)
    return replace(first, values=values, rest=rest, integers=first.integers.clone())


def overlay(own: Model, part: Model) -> Model:
    """`own` with the values of `part` where both store an entry, and with its rest, in memory of its own.

    All other values are own's, bit by bit, and so are integer buffers.
    """
    same_layout(own, part, "part")
    there = part.with_values(torch.ones_like(part.values)).with_pattern(own.bitmap).values > 0
    values = torch.where(there, part.with_pattern(own.bitmap).values, own.values)
    return replace(own, values=values, rest=part.rest.clone(), integers=own.integers.clone())


def zeros(like: Model) -> Model:
    """A model of zeros, stored where `like` stores entries."""
    values, rest, integers = (torch.zeros_like(x) for x in (like.values, like.rest, like.integers))
    return replace(like, values=values, rest=rest, integers=integers)
