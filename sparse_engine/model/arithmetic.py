"""Sums of models that store the same entries: mixing, differences, gradient steps; and parts of models.

combine([a, b], [1, -1]) = a - b            on values and rest;  integer buffers are those of the first
zeros(a)                                    the pattern of a, every number 0
overlay(a, b)                               b where it stores an entry, else a
"""

from collections.abc import Sequence
from dataclasses import replace

import torch

from sparse_engine.model.average import same_layout
from sparse_engine.model.model import Model


def combine(states: Sequence[Model], weights: Sequence[float]) -> Model:
    """Return sum_i weights[i] states[i] as a new model, added in the order given, in float32.

    states   models of one layout that store the same entries
    weights  one number per model

    >>> import torch, sparse_engine as se
    >>> a = se.compress(torch.nn.Linear(20, 50))
    >>> se.combine([a, a], [1, -1]).values.abs().max()
    tensor(0.)
    """
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
    """Return a new model: `own` with the values of `part` where both store an entry, and with part's rest.

    own   the model whose pattern, other values and integer buffers the result has, bit by bit
    part  a model of the same layout

    >>> import torch, sparse_engine as se
    >>> own = se.compress(torch.nn.Linear(20, 50))
    >>> half = se.prune_pqi(se.zeros(own), se.PQIConfig(eta_c=1, beta=0.5))
    >>> se.overlay(own, half).values.count_nonzero() == 1000 - half.bitmap.nnz
    tensor(True)
    """
    same_layout(own, part, "part")
    there = part.with_values(torch.ones_like(part.values)).with_pattern(own.bitmap).values > 0
    values = torch.where(there, part.with_pattern(own.bitmap).values, own.values)
    return replace(own, values=values, rest=part.rest.clone(), integers=own.integers.clone())


def zeros(like: Model) -> Model:
    """Return a model of zeros with the layout and pattern of `like`.

    >>> import torch, sparse_engine as se
    >>> se.zeros(se.compress(torch.nn.Linear(20, 50))).values.sum()
    tensor(0.)
    """
    values, rest, integers = (torch.zeros_like(x) for x in (like.values, like.rest, like.integers))
    return replace(like, values=values, rest=rest, integers=integers)
