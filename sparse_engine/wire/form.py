"""Where the numbers of a model lie in a message: which are weights, which travel as they are."""

import json
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from hashlib import blake2b
from itertools import accumulate
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from sparse_engine.model.model import Layout, Model


class Form(NamedTuple):
    """The fingerprint of a layout, and where its parts lie in a message."""

    fingerprint: int
    weights: tuple[slice, ...]  # where in a model's `rest` the exempt weights are
    vectors: tuple[slice, ...]  # where the other floats are
    num_weights: int
    num_vectors: int
    num_integers: int

    @property
    def rest_size(self) -> int:
        return 4 * self.num_vectors + 8 * self.num_integers


@lru_cache(maxsize=64)
def form(layout: Layout) -> Form:
    """Return the form of messages of this layout."""
    prunable = list(zip(layout.names, layout.shapes, strict=True))
    rest = [(entry.name, entry.shape, str(entry.dtype).removeprefix("torch.")) for entry in layout.rest]
    text = json.dumps([prunable, rest], separators=(",", ":"))
    fingerprint = int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")
    ends = list(accumulate((prod(entry.shape) for entry in layout.floats), initial=0))
    parts = [*zip(layout.floats, map(slice, ends, ends[1:]), strict=False)]
    weights = _joined(part for entry, part in parts if len(entry.shape) > 1)
    vectors = _joined(part for entry, part in parts if len(entry.shape) <= 1)
    integers = sum(prod(entry.shape) for entry in layout.integers)
    return Form(fingerprint, weights, vectors, _length(weights), _length(vectors), integers)


def weights(state: Model) -> Tensor:
    """Return all numbers that go into the section of values."""
    exempt = form(state.layout).weights
    return torch.cat([state.values, *(state.rest[part] for part in exempt)]) if exempt else state.values


def with_weights(state: Model, numbers: Tensor) -> Model:
    """Return a model with these numbers as weights and nothing else, on the pattern of `state`."""
    stored, rest = state.bitmap.nnz, torch.zeros_like(state.rest)
    put(rest, form(state.layout).weights, numbers[stored:])
    return replace(state, values=numbers[:stored], rest=rest)


def parts(flat: Tensor, where: tuple[slice, ...]) -> Tensor:
    """Return the entries of `flat` at these slices, one after the other; a view where there is one slice."""
    if len(where) == 1:
        return flat[where[0]]
    return torch.cat([flat[part] for part in where]) if where else flat[:0]


def put(flat: Tensor, where: tuple[slice, ...], numbers: Tensor) -> None:
    """Write `numbers` into `flat` at these slices: the inverse of `parts`."""
    for part, values in zip(where, numbers.split([part.stop - part.start for part in where]), strict=True):
        flat[part] = values


def _joined(parts: Iterable[slice]) -> tuple[slice, ...]:
    """Return slices of the same entries in the same order, as few as possible."""
    found: list[slice] = []
    for part in parts:
        if found and found[-1].stop == part.start:
            part = slice(found.pop().start, part.stop)
        found.append(part)
    return tuple(found)


def _length(parts: Iterable[slice]) -> int:
    return sum(part.stop - part.start for part in parts)
