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

import numpy as np
import torch
from numpy.typing import NDArray

from sparse_engine.model.model import Model
from sparsefl.kernels import bitmap as bitmaps
from sparsefl.kernels.drift import drift as drift_of_weights
from sparsefl.kernels.drift import drift_of_runs
from sparsefl.kernels.layout import Bitmap, Packed
from sparsefl.kernels.masked_average import masked_average, mean


def average(own: Model, neighbours: Iterable[Model], mask: Bitmap | Model | None = None) -> Model:
    """Return the mean of `own` and `neighbours` as a new model that stores the entries of `mask`.

    own         a model; its integer buffers are those of the result
    neighbours  models of the same layout, with patterns of their own
    mask        a pattern, or a model that has it; None: the pattern of `own`

    An entry is the mean over the models that store it, and 0 where none does. Biases and norms are plain
    means over all.

    >>> import torch, sparse_engine as se
    >>> a, b = (se.compress(se.sparsify(torch.nn.Linear(20, 50), density=0.1, seed=s)) for s in (0, 1))
    >>> mean = se.average(a, [b])
    >>> mean.bitmap is a.bitmap, mean.values.shape
    (True, torch.Size([100]))
    """
    models = [own, *neighbours]
    for j, model in enumerate(models[1:]):
        if model.layout is not own.layout:
            same_layout(own, model, f"neighbours[{j}]")
    if isinstance(mask, Model):
        same_layout(own, mask, "mask")
        mask = mask.bitmap
    bitmap = own.bitmap if mask is None else mask
    values = masked_average(bitmap, [model.packed for model in models])
    rest = mean([model.rest for model in models])
    return Model(own.layout, bitmap, values, rest, own.integers.clone())


def weighted_average(states: Sequence[Model], weights: Sequence[float]) -> Model:
    """Return the weighted mean of `states` as a new model that stores what any of them stores.

    states   models of one layout
    weights  one number above 0 per model; model j counts weights[j] where it stores an entry

    >>> import torch, sparse_engine as se
    >>> a = se.compress(torch.nn.Linear(20, 50))
    >>> torch.allclose(se.weighted_average([a, se.zeros(a)], [3, 1]).values, 0.75 * a.values)
    True
    """
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
    # both means divide by the number of models that store the entry: it cancels
    values = masked_average(union, [Packed(s.bitmap, s.values * share) for s, share in pairs])
    stored = masked_average(union, [Packed(s.bitmap, torch.full_like(s.values, share)) for s, share in pairs])
    rest = torch.zeros_like(first.rest)
    for state, share in pairs:
        rest.add_(state.rest, alpha=share)
    return replace(
        first, bitmap=union, values=values.div_(stored), rest=rest, integers=first.integers.clone()
    )


def drift(a: Model, b: Model, squared: bool = False) -> float:
    """Return how far model `a` is from model `b`: the sum over tensors of ||a - b||_2.

    squared  return one squared norm of everything instead

    An entry that is not stored counts as 0. Integer buffers do not count.

    >>> import torch, sparse_engine as se
    >>> a = se.compress(torch.nn.Linear(20, 50))
    >>> se.drift(a, a), se.drift(a, se.zeros(a)) > 0
    (0.0, True)
    """
    same_layout(a, b, "b")
    weights, rest = drift_of_weights(a.packed, b.packed), drift_of_runs(a.rest, b.rest, a.layout.float_runs)
    return total_drift(torch.cat([weights, rest]).numpy(), squared)


def total_drift(norms: NDArray[np.float64], squared: bool = False) -> float:
    """Return the drift of a model from the norms of its tensors' differences."""
    return float((norms * norms).sum() if squared else norms.sum())


def same_layout(own: Model, other: Model, name: str) -> None:
    """Raise a ValueError that lists the differences if `other` is a model of another network."""
    differences = own.layout.differences(other.layout)
    if differences:
        raise ValueError(f"expected states of one layout, got {name} with " + "; ".join(differences))
