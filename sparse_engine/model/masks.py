"""First masks: uniform, and Erdos-Renyi-Kernel (ERK).

    ERK at density D:   p_l = eps (sum of the weight's dims) / (product of its dims),   nnz_l = int(p_l numel)

While some p_l > 1, the layer with the largest p_l becomes dense and eps is solved again, so that the total
stays D. Positions are uniform without replacement: the nnz_l smallest of one random 64-bit key per entry.
Each layer draws its keys from a Philox stream of its own, so its mask does not depend on the other layers.
"""

from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from math import prod
from typing import TypeVar, overload

import numpy as np
import torch
from torch import Tensor

Shape = Sequence[int]
Shapes = Mapping[str, Shape] | Sequence[Shape]
T = TypeVar("T")


@overload
def erk_densities(shapes: Mapping[str, Shape], density: float) -> dict[str, float]: ...
@overload
def erk_densities(shapes: Sequence[Shape], density: float) -> list[float]: ...
def erk_densities(shapes: Shapes, density: float) -> dict[str, float] | list[float]:
    """Return the ERK density of every layer: a dict or a list, as the shapes were given.

    shapes   {weight's name: its shape}, or a list of shapes
    density  the share of all weights that is stored, from 0 to 1

    >>> import sparse_engine as se
    >>> se.erk_densities({"small": (10, 10), "large": (100, 100)}, density=0.2)
    {'small': 1.0, 'large': 0.192}
    """
    check_density(density)
    keys, dims = _unzip(shapes)
    return _rezip(shapes, keys, _erk(dims, density))


@overload
def erk_masks(shapes: Mapping[str, Shape], density: float, seed: int) -> dict[str, Tensor]: ...
@overload
def erk_masks(shapes: Sequence[Shape], density: float, seed: int) -> list[Tensor]: ...
def erk_masks(shapes: Shapes, density: float, seed: int) -> dict[str, Tensor] | list[Tensor]:
    """Return random bool masks at the ERK densities: a dict or a list, as the shapes were given.

    shapes   {weight's name: its shape}, or a list of shapes
    density  the share of all weights that is stored, from 0 to 1
    seed     the same (seed, name or index) gives the same mask

    >>> import sparse_engine as se
    >>> masks = se.erk_masks({"small": (10, 10), "large": (100, 100)}, density=0.2, seed=0)
    >>> {name: int(mask.sum()) for name, mask in masks.items()}
    {'small': 100, 'large': 1920}
    """
    return _masks(shapes, density, seed, _erk)


@overload
def uniform_masks(shapes: Mapping[str, Shape], density: float, seed: int) -> dict[str, Tensor]: ...
@overload
def uniform_masks(shapes: Sequence[Shape], density: float, seed: int) -> list[Tensor]: ...
def uniform_masks(shapes: Shapes, density: float, seed: int) -> dict[str, Tensor] | list[Tensor]:
    """Return random bool masks, every layer at the same density: a dict or a list, as the shapes were given.

    shapes   {weight's name: its shape}, or a list of shapes
    density  the share of each weight that is stored, from 0 to 1
    seed     the same (seed, name or index) gives the same mask

    >>> import sparse_engine as se
    >>> [int(m.sum()) for m in se.uniform_masks([(10, 10), (100, 100)], density=0.2, seed=0)]
    [20, 2000]
    """
    return _masks(shapes, density, seed, lambda dims, density: [density] * len(dims))


def check_density(density: float, what: str = "density") -> None:
    if not 0 <= density <= 1:
        raise ValueError(f"expected a {what} from 0 to 1, got {density}")


def choose(n: int, k: int, seed: int, *key: str | int) -> Tensor:
    """Return bool [n], exactly k true, every choice equally likely; the same for the same seed and key."""
    chosen = np.full(n, k == n)
    if 0 < k < n:
        digest = blake2b(repr((int(seed), *key)).encode(), digest_size=16).digest()
        keys = np.random.Philox(int.from_bytes(digest, "little")).random_raw(n)
        chosen[np.argpartition(keys, k)[:k]] = True
    return torch.from_numpy(chosen)


def _erk(shapes: list[tuple[int, ...]], density: float) -> list[float]:
    numel = [prod(shape) for shape in shapes]
    sums = [sum(shape) for shape in shapes]
    if density == 1:  # exactly, whatever eps rounds to
        return [1.0] * len(shapes)
    p = [1.0] * len(shapes)
    free = [i for i, n in enumerate(numel) if n]
    while free:
        dense = sum(numel) - sum(numel[i] for i in free)
        eps = (density * sum(numel) - dense) / sum(sums[i] for i in free)
        for i in free:
            p[i] = eps * sums[i] / numel[i]
        fullest = max(free, key=lambda i: p[i])
        if p[fullest] <= 1:
            break
        p[fullest] = 1.0
        free.remove(fullest)
    return p


def _masks(
    shapes: Shapes, density: float, seed: int, rule: Callable[[list[tuple[int, ...]], float], list[float]]
) -> dict[str, Tensor] | list[Tensor]:
    check_density(density)
    keys, dims = _unzip(shapes)
    masks = [
        choose(prod(shape), int(p * prod(shape)), seed, "mask", key).view(shape)
        for key, shape, p in zip(keys, dims, rule(dims, density), strict=True)
    ]
    return _rezip(shapes, keys, masks)


def _unzip(shapes: Shapes) -> tuple[list[str | int], list[tuple[int, ...]]]:
    keys: list[str | int] = [*shapes] if isinstance(shapes, Mapping) else [*range(len(shapes))]
    dims = [tuple(int(n) for n in s) for s in (shapes.values() if isinstance(shapes, Mapping) else shapes)]
    wrong = {key: shape for key, shape in zip(keys, dims, strict=True) if not shape or min(shape) < 0}
    if wrong:
        raise ValueError(f"expected shapes of at least one dimension, none negative, got {wrong}")
    return keys, dims


def _rezip(shapes: Shapes, keys: list[str | int], items: list[T]) -> dict[str, T] | list[T]:
    return {str(k): x for k, x in zip(keys, items, strict=True)} if isinstance(shapes, Mapping) else items
