"""RigL: drop the smallest weights, grow where the gradient is largest. Layers keep their number of entries.

    alpha_t = alpha_0 / 2 (1 + cos(pi t / T)),   n = ceil(alpha_t nnz) in every layer

Drop the n smallest |w|, then grow the n largest |score| among all entries that are not stored now, those just
dropped included. Ties are broken by position. A dense layer stays dense.
"""

import math
from collections.abc import Callable, Mapping
from typing import Literal

import torch
from torch import Tensor

from sparse_engine.model.masks import choose
from sparse_engine.model.model import Model
from sparse_engine.model.prune import without_smallest
from sparsefl.kernels import bitmap as bitmaps
from sparsefl.kernels.layout import Bitmap
from sparsefl.kernels.select import grow, select

Grads = Mapping[str, Tensor] | Callable[[str], Tensor]


def rigl_fraction(t: int, num_rounds: int, alpha0: float = 0.3) -> float:
    """Return alpha_t, the share of entries to drop and grow in round t of num_rounds: from alpha0 down to 0.

    >>> import sparse_engine as se
    >>> [round(se.rigl_fraction(t, 4, alpha0=0.3), 3) for t in range(5)]
    [0.3, 0.256, 0.15, 0.044, 0.0]
    """
    if num_rounds < 1 or not 0 <= t <= num_rounds:
        raise ValueError(f"expected a round t from 0 to num_rounds >= 1, got t={t}, num_rounds={num_rounds}")
    if not 0 <= alpha0 <= 1:
        raise ValueError(f"expected alpha0 from 0 to 1, got {alpha0}")
    return alpha0 / 2 * (1 + math.cos(math.pi * t / num_rounds))


def rigl(
    state: Model,
    grads: Grads | None,
    fraction: float,
    *,
    grow: Literal["gradient", "random"] = "gradient",
    seed: int | None = None,
) -> Model:
    """Return `state` on its next pattern: kept entries keep their value, grown ones are 0.

    state     a model
    grads     dense gradients by weight's name, or a function that returns the one of a name; it is called
              once per layer, in order, so that one dense gradient exists at a time
    fraction  the share of each layer's entries to drop and to grow
    grow      "gradient", or "random": no gradients but a seed, entries uniform among those not stored
    seed      of random growth; the same (seed, name) gives the same entries

    The mean over neighbours gives grown entries their first value (algorithms.md 2.9). What was trained
    belongs to the old pattern: a caller that still sends or averages it keeps the old model.

    >>> import torch, sparse_engine as se
    >>> model = se.compress(se.sparsify(torch.nn.Linear(20, 50), density=0.1))
    >>> moved = se.rigl(model, {"weight": torch.randn(50, 20)}, fraction=0.3)
    >>> moved.bitmap.nnz, torch.equal(moved.bitmap.words, model.bitmap.words)
    (100, False)
    """
    _check(state, grads, fraction, grow, seed)
    growth = Growth(state, fraction)
    shapes = dict(zip(state.layout.names, state.layout.shapes, strict=True))
    if isinstance(grads, Mapping):
        growth.add_all({name: _gradient(grads, name, shape, state.values) for name, shape in shapes.items()})
    else:
        for name, shape in shapes.items():
            if grads is not None:
                growth.add(name, _gradient(grads, name, shape, state.values))
            else:
                assert seed is not None
                growth.add_random(name, seed)
    return state.with_pattern(growth.kept).with_pattern(growth.bitmap())


class Growth:
    """RigL layer by layer, in any order: for gradients that a backward pass brings one by one.

    `add` each layer once, or `add_all`; then `bitmap()` returns the next pattern. No gradient is kept.

    >>> import torch, sparse_engine as se
    >>> model = se.compress(se.sparsify(torch.nn.Linear(20, 50), density=0.1))
    >>> growth = se.Growth(model, fraction=0.3)
    >>> growth.add("weight", torch.randn(50, 20))
    >>> model.with_pattern(growth.bitmap()).bitmap.nnz
    100
    """

    def __init__(self, state: Model, fraction: float) -> None:
        check_fraction(fraction)
        self.layout, self.fraction = state.layout, fraction
        self.n = torch.tensor([math.ceil(fraction * d) for d in state.bitmap.stored], dtype=torch.int64)
        self.kept = without_smallest(state, self.n)
        self._words = self.kept.words.clone()
        self._missing = set(self.layout.names)

    def add(self, name: str, gradient: Tensor, again: bool = False) -> None:
        """Grow the layer `name` where |gradient|, in the weight's shape or flat, is largest.

        `again`: a second gradient of a layer replaces the first one's choice instead of raising an error.
        """
        i = self._number(name, again)
        try:
            grow(self.kept, {i: gradient.detach().reshape(-1)}, self.n, self._words)
        except ValueError as wrong:
            raise ValueError(f"gradient of {name}: {wrong}") from wrong
        self._missing.discard(name)

    def add_all(self, gradients: Mapping[str, Tensor]) -> None:
        """Grow the layers of all `gradients`, as `add` would one by one, with one selection."""
        flat = {self._number(name): gradient.detach().reshape(-1) for name, gradient in gradients.items()}
        try:
            grow(self.kept, flat, self.n, self._words)
        except ValueError:
            for name, gradient in gradients.items():  # one of them says what is wrong, and where
                self.add(name, gradient)
            raise
        self._missing.difference_update(gradients)

    def add_random(self, name: str, seed: int) -> None:
        """Grow the layer `name` at random; the same (seed, name) gives the same entries."""
        i = self._number(name)
        inactive = bitmaps.complement(self.kept.segment(i))
        lot = choose(inactive.nnz, int(self.n[i]), seed, "grow", name).to(torch.float32)
        grown = select(lot.to(self._words.device), inactive, self.n[i : i + 1], largest=True)
        lo, hi = self.kept.segments.starts[i : i + 2].tolist()
        self._words[lo:hi] = self.kept.words[lo:hi] | grown.words
        self._missing.discard(name)

    def bitmap(self) -> Bitmap:
        """Return the next pattern, once every layer was added."""
        if self._missing:
            raise ValueError(
                f"expected every prunable weight to be added, got none of {sorted(self._missing)}"
            )
        return bitmaps.make(self._words, self.kept.segments)

    def _number(self, name: str, again: bool = False) -> int:
        if name not in self._missing and not again and name in self.layout.names:
            raise ValueError(f"expected every weight once, got {name} again")
        return self.layout.index(name)


def check_fraction(fraction: float) -> None:
    if not 0 <= fraction <= 1:
        raise ValueError(f"expected a fraction from 0 to 1, got {fraction}")


def _gradient(grads: Grads, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
    g = grads[name] if isinstance(grads, Mapping) else grads(name)
    if tuple(g.shape) != shape or g.dtype != like.dtype or g.device != like.device:
        raise ValueError(
            f"expected the gradient of {name} as {like.dtype} {shape} on {like.device}, "
            f"got {g.dtype} {tuple(g.shape)} on {g.device}"
        )
    return g


def _check(state: Model, grads: Grads | None, fraction: float, grow: str, seed: int | None) -> None:
    check_fraction(fraction)
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
