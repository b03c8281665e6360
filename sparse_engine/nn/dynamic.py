"""Dynamic sparse training of one network, without clients: RigL beside any optimizer.

    net = se.sparsify(net, density=0.1)
    optimizer = se.SparseSGD(net, lr=0.1, momentum=0.9)
    rigl = se.RigL(net, optimizer, num_steps=10_000, every=100)
    for x, y in batches:
        optimizer.zero_grad()
        cross_entropy(net(x), y).backward()
        rigl.step()                     # instead of optimizer.step()

Every `every` steps the masks move instead of the weights: each sparse layer drops the share alpha_t
of its smallest weights and grows as many where the dense gradient of that backward pass is largest
(sparse_engine/model/grow.py). alpha_t falls from alpha0 to 0 as a cosine over the steps up to `until`; after
them masks stay. Grown weights start at 0, and so do their entries in the optimizer's state (momentum, Adam's
moments); those of weights that stay are kept. At most one layer's dense gradient exists at a time.

BatchNorm's running statistics follow weights and masks with a delay: after a short training, or soon after a
move, evaluation is better once they are taken anew (`reset_running_stats`, then batches in training mode).
"""

import math
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from sparse_engine.model.grow import Growth, rigl_fraction
from sparse_engine.model.model import Layout, Model
from sparse_engine.model.pattern import Pattern
from sparse_engine.nn.layer import SparseLayer
from sparsefl.kernels import bitmap as bitmaps
from sparsefl.kernels.layout import Bitmap, Packed
from sparsefl.kernels.masked_average import masked_average


class RigL:
    """Moves the masks of the sparse layers of `net` while `optimizer` trains them.

    Arguments:
        net: a network from `se.sparsify`.
        optimizer: SparseSGD or any torch optimizer over the parameters of `net`.
        num_steps: how many steps the training has.
        every: steps between two moves of the masks.
        alpha0: share of a layer's weights that the first move would replace.
        until: share of `num_steps` after which masks stay.
        grow: "gradient", or "random" (which needs `seed` and no dense gradient).

    `moves` counts the moves so far, `fraction` is the share that the next one replaces. With several backward
    passes per step, the last one decides where to grow.

    >>> import torch, sparse_engine as se
    >>> net = se.sparsify(torch.nn.Linear(20, 50), density=0.1)
    >>> rigl = se.RigL(net, se.SparseSGD(net, lr=0.1), num_steps=4, every=2)
    >>> def step():
    ...     net(torch.randn(3, 20)).square().sum().backward()
    ...     return rigl.step()
    >>> [step() for _ in range(4)]
    [False, False, True, False]
    """

    def __init__(
        self,
        net: nn.Module,
        optimizer: Optimizer,
        *,
        num_steps: int,
        every: int = 100,
        alpha0: float = 0.3,
        until: float = 0.75,
        grow: Literal["gradient", "random"] = "gradient",
        seed: int = 0,
    ) -> None:
        self._layers = {name: m for name, m in net.named_modules() if isinstance(m, SparseLayer)}
        if not self._layers:
            raise ValueError("expected a network with sparse layers, got none: use se.sparsify first")
        if num_steps < 1 or every < 1 or not 0 < until <= 1:
            raise ValueError(
                "expected num_steps and every from 1, and until above 0, up to 1, "
                f"got {num_steps}, {every}, {until}"
            )
        if grow not in ("gradient", "random"):
            raise ValueError(f"expected grow as 'gradient' or 'random', got {grow!r}")
        rigl_fraction(0, num_steps, alpha0)  # refuses a wrong alpha0
        self.optimizer, self.every, self.alpha0, self.grow, self.seed = optimizer, every, alpha0, grow, seed
        self.last = math.ceil(until * num_steps)  # the first step without a move
        self.steps = self.moves = 0
        self._growth: Growth | None = None
        self._prepare()

    @property
    def fraction(self) -> float:
        """alpha_t of the current step; 0 once masks stay."""
        return rigl_fraction(self.steps, self.last, self.alpha0) if self.steps < self.last else 0.0

    @torch.no_grad()
    def step(self) -> bool:
        """Make one step, after backward. Return whether the masks moved instead of the weights."""
        moved = self._growth is not None
        if self._growth is not None:
            self._move(self._growth)
        else:
            self.optimizer.step()
        self.steps += 1
        self._prepare()
        return moved

    def state_dict(self) -> dict[str, int]:
        """Return what a checkpoint needs beside the state dicts of network and optimizer."""
        return {"steps": self.steps, "moves": self.moves}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on from `state_dict`, once network and optimizer are loaded."""
        self.steps, self.moves = state["steps"], state["moves"]
        self._prepare()

    def _prepare(self) -> None:
        """Choose what the next step drops, and let the next backward pass choose what grows."""
        due = 0 < self.steps < self.last and self.steps % self.every == 0
        self._growth = Growth(self._model(), self.fraction) if due else None
        for name, layer in self._layers.items():
            layer.watch = partial(self._seen, name) if due and self.grow == "gradient" else None

    def _seen(self, name: str, gradient: Tensor) -> None:
        assert self._growth is not None  # nobody watches without
        self._growth.add(name, gradient, again=True)

    def _move(self, growth: Growth) -> None:
        if self.grow == "random":
            for name in self._layers:
                growth.add_random(name, self.seed + self.moves)
        following = growth.bitmap()
        for i, layer in enumerate(self._layers.values()):
            self._carry(layer, growth.kept.segment(i), following.segment(i))
        self.moves += 1

    def _carry(self, layer: SparseLayer, kept: Bitmap, new: Bitmap) -> None:
        """Put the layer on its new pattern, and what the optimizer remembers of its weights with it."""
        old, shape = layer.pattern.bitmap, layer.pattern.shape
        for key, x in self.optimizer.state.get(layer.weight, {}).items():
            if isinstance(x, Tensor) and x.numel() == old.nnz and x.is_floating_point():
                self.optimizer.state[layer.weight][key] = _moved(x.reshape(-1), old, kept, new)
        layer.set_pattern(Pattern(shape, kept))
        layer.set_pattern(Pattern(shape, new))

    def _model(self) -> Model:
        """Return the sparse layers alone as a model at rest."""
        layers = [*self._layers.values()]
        layout = Layout(tuple(self._layers), tuple(layer.pattern.shape for layer in layers))
        words = torch.cat([layer.pattern.bitmap.words for layer in layers])
        values = torch.cat([layer.weight.detach() for layer in layers])
        empty = values.new_empty(0)
        return Model(layout, bitmaps.make(words, layout.segments), values, empty, empty.long())


def _moved(values: Tensor, old: Bitmap, kept: Bitmap, new: Bitmap) -> Tensor:
    stayed = masked_average(kept, [Packed(old, values)])
    return masked_average(new, [Packed(kept, stayed)])
