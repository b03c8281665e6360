"""Averaging models that store different entries, and how far two models are apart.

    prunable   w = (sum_j w_j) / (number of j whose pattern has the entry), 0 where none has it, on a mask
    rest       the plain mean;  integer buffers are the client's own
    drift      sum over tensors of ||a - b||_2, or one squared norm of everything

Sums run over the client's own model first, then its neighbours in the order given, in float32.
"""

from collections.abc import Iterable
from dataclasses import replace

import torch

from kernels.drift import drift as drift_of_weights
from kernels.layout import Bitmap
from kernels.masked_average import masked_average
from sparse_engine.state import State


def average(own: State, neighbours: Iterable[State], mask: Bitmap | State | None = None) -> State:
    """The mean of `own` and `neighbours` on `mask` (default: own's pattern), in memory of its own."""
    models = [own, *neighbours]
    for j, model in enumerate(models[1:]):
        same_layout(own, model, f"neighbours[{j}]")
    if isinstance(mask, State):
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


def drift(a: State, b: State, squared: bool = False) -> float:
    """How far a is from b. An entry that is not stored counts as 0, an integer buffer not at all."""
    same_layout(a, b, "b")
    ours, theirs = a.rest_tensors(), b.rest_tensors()
    rest = [(ours[e.name].double() - theirs[e.name].double()).norm() for e in a.layout.floats]
    norms = torch.cat([drift_of_weights(a.packed, b.packed), torch.tensor(rest, dtype=torch.float64)])
    return float(norms.square().sum() if squared else norms.sum())


def same_layout(own: State, other: State, name: str) -> None:
    """Raises where `other` is a model of another network."""
    differences = own.layout.differences(other.layout)
    if differences:
        raise ValueError(f"expected states of one layout, got {name} with " + "; ".join(differences))
