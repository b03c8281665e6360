"""Averaging models that store different entries, and how far two models are apart.

    prunable   w = (sum_j w_j) / (number of j whose pattern has the entry), 0 where none has it, on a mask
    rest       the plain mean;  integer buffers are the client's own
    weighted   w = (sum_j a_j w_j) / (sum of a_j over those j), stored where any model stores the entry
    drift      sum over tensors of ||a - b||_2, or one squared norm of everything

Sums run over the client's own model first, then its neighbours in the order given, in float32.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import reduce

import torch

from sparse_engine.model.model import Model
from sparsefl.kernels import bitmap as bitmaps
from sparsefl.kernels.drift import drift as drift_of_weights
from sparsefl.kernels.layout import Bitmap, Packed
from sparsefl.kernels.masked_average import masked_average


def average(own: Model, neighbours: Iterable[Model], mask: Bitmap | Model | None = None) -> Model:
    """The mean of `own` and `neighbours` on `mask` (default: own's pattern), in memory of its own."""
    models = [own, *neighbours]
    for j, model in enumerate(models[1:]):
        same_layout(own, model, f"neighbours[{j}]")
    if isinstance(mask, Model):
        same_layout(own, mask, "mask")
        mask = mask.bitmap
    bitmap = own.bitmap if mask is None else mask
    rest = own.rest.clone()
    for model in models[1:]:
        rest += model.rest
    return replace(
        own,
        bitmap=bitmap,
        values=masked_average(bitmap, [model.packed for model in models]),
        rest=rest.div_(len(models)),
        integers=own.integers.clone(),
    )


def weighted_average(states: Sequence[Model], weights: Sequence[float]) -> Model:
    """The mean of `states`, state j counting weights[j] where it stores an entry, in memory of its own."""
    if not states or len(states) != len(weights) or not all(0 < w < math.inf for w in weights):
        raise ValueError(
            f"expected a weight above 0 for each of at least one state, got {len(states)} states, {weights}"
        )
    first, total = states[0], math.fsum(weights)
    for i, state in enumerate(states):
        same_layout(first, state, f"states[{i}]")
    pairs = [(state, weight / total) for state, weight in zip(states, weights, strict=True)]
    words = reduce(torch.bitwise_or, [state.bitmap.words for state in states])
    union = bitmaps.make(words.clone(), first.bitmap.segments)
    # both means are over the number of models that store the entry: it goes out
    values = masked_average(union, [Packed(s.bitmap, s.values * share) for s, share in pairs])
    stored = masked_average(union, [Packed(s.bitmap, torch.full_like(s.values, share)) for s, share in pairs])
    rest = torch.zeros_like(first.rest)
    for state, share in pairs:
        rest.add_(state.rest, alpha=share)
    return replace(
        first, bitmap=union, values=values.div_(stored), rest=rest, integers=first.integers.clone()
    )


def drift(a: Model, b: Model, squared: bool = False) -> float:
    """How far a is from b. An entry that is not stored counts as 0, an integer buffer not at all."""
    same_layout(a, b, "b")
    ours, theirs = a.rest_tensors(), b.rest_tensors()
    rest = [(ours[e.name].double() - theirs[e.name].double()).norm() for e in a.layout.floats]
    norms = torch.cat([drift_of_weights(a.packed, b.packed), torch.tensor(rest, dtype=torch.float64)])
    return float(norms.square().sum() if squared else norms.sum())


def same_layout(own: Model, other: Model, name: str) -> None:
    """Raises where `other` is a model of another network."""
    differences = own.layout.differences(other.layout)
    if differences:
        raise ValueError(f"expected states of one layout, got {name} with " + "; ".join(differences))
