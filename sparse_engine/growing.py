"""RigL: drop the smallest weights, grow where the gradient is largest. The number stored in a layer stays.

    alpha_t = alpha_0 / 2 (1 + cos(pi t / T)),   n = ceil(alpha_t nnz) in every layer

Drop the n smallest |w|, then grow the n largest |score| among all entries that are not stored now, those just
dropped included. Ties by position. A dense layer stays dense.
"""

import math
from collections.abc import Callable, Mapping
from typing import Literal

import torch
from torch import Tensor

from kernels import bitmap as bitmaps
from kernels.layout import Bitmap
from kernels.select import select
from sparse_engine.masks import choose
from sparse_engine.pruning import without_smallest
from sparse_engine.state import State

Grads = Mapping[str, Tensor] | Callable[[str], Tensor]


def rigl_fraction(t: int, num_rounds: int, alpha0: float = 0.3) -> float:
    """alpha_t, the share to drop and grow in round t of num_rounds: from alpha0 down to 0."""
    if num_rounds < 1 or not 0 <= t <= num_rounds:
        raise ValueError(f"expected a round t from 0 to num_rounds >= 1, got t={t}, num_rounds={num_rounds}")
    if not 0 <= alpha0 <= 1:
        raise ValueError(f"expected alpha0 from 0 to 1, got {alpha0}")
    return alpha0 / 2 * (1 + math.cos(math.pi * t / num_rounds))


def rigl(
    state: State,
    grads: Grads | None,
    fraction: float,
    *,
    grow: Literal["gradient", "random"] = "gradient",
    seed: int | None = None,
) -> State:
    """`state` on its next pattern: kept entries keep their value, grown ones are 0, also those just dropped.

    The mean over neighbours gives grown entries their first value (SPEC.md 2.9), and what was trained belongs
    to the old pattern: a caller that still sends or averages it keeps the old state.

    `grads`: dense gradients by name, or a function that gives the one of a name; it is asked once a layer, in
    order, so that one dense gradient exists at a time. `grow="random"` takes no gradients but a seed: entries
    are then uniform among those not stored, the same for the same (seed, name).
    """
    _check(state, grads, fraction, grow, seed)
    n = torch.tensor([math.ceil(fraction * d) for d in state.bitmap.counts.tolist()], dtype=torch.int64)
    kept = without_smallest(state, n)
    words = kept.words.clone()
    starts = kept.segments.starts.tolist()
    for i, name in enumerate(state.layout.names):
        inactive = bitmaps.complement(kept.segment(i))
        if grads is not None:
            score = _gradient(grads, name, state.layout.shapes[i], state.values)
            grown = _grow(name, score, inactive, n[i : i + 1])
        else:
            assert seed is not None
            lot = choose(inactive.nnz, int(n[i]), seed, "grow", name)
            grown = select(lot.to(state.values), inactive, n[i : i + 1], largest=True)
        words[starts[i] : starts[i + 1]] |= grown.words
    return state.with_pattern(kept).with_pattern(bitmaps.make(words, kept.segments))


def _grow(name: str, score: Tensor, inactive: Bitmap, n: Tensor) -> Bitmap:
    try:
        return select(score, inactive, n, largest=True, dense=True)
    except ValueError as wrong:
        raise ValueError(f"gradient of {name}: {wrong}") from wrong


def _gradient(grads: Grads, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
    g = grads[name] if isinstance(grads, Mapping) else grads(name)
    if tuple(g.shape) != shape or g.dtype != like.dtype or g.device != like.device:
        raise ValueError(
            f"expected the gradient of {name} as {like.dtype} {shape} on {like.device}, "
            f"got {g.dtype} {tuple(g.shape)} on {g.device}"
        )
    return g.detach().reshape(-1)


def _check(state: State, grads: Grads | None, fraction: float, grow: str, seed: int | None) -> None:
    if not 0 <= fraction <= 1:
        raise ValueError(f"expected a fraction from 0 to 1, got {fraction}")
    if grow not in ("gradient", "random"):
        raise ValueError(f"expected grow as 'gradient' or 'random', got {grow!r}")
    if grow == "random" and (seed is None or grads is not None):
        given = f"seed={seed}, grads={type(grads).__name__}"
        raise ValueError(f"expected a seed and no gradients to grow at random, got {given}")
    if grow == "gradient" and grads is None:
        raise ValueError("expected gradients to grow by, got None")
    if grow == "gradient" and isinstance(grads, Mapping):
        missing = [name for name in state.layout.names if name not in grads]
        if missing:
            raise ValueError(f"expected a gradient for every prunable weight, got none for {missing}")
