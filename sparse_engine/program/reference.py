"""A graph in plain torch: the specification of every step, in float64 and with autograd's gradients.

For tests, and for reading. It has the methods of the native session (sparse_engine/program/cpu/session.py).
"""

from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sparse_engine.model.grow import Growth
from sparse_engine.model.model import Model
from sparse_engine.program import steps
from sparse_engine.program.batches import Batches, Trained, Training
from sparse_engine.program.steps import Graph
from sparsefl.kernels import bitmap as bitmaps
from sparsefl.kernels.dropout import dropout
from sparsefl.kernels.gather import gather
from sparsefl.kernels.layout import Bitmap

_DTYPE = torch.float64


class Reference:
    """As Session. Models stay float32 at rest; everything between is float64. With precision "bf16" values
    between steps and their gradients are rounded to bfloat16; sums, statistics and the loss are not."""

    def __init__(self, graph: Graph, precision: str = "fp32") -> None:
        self.graph, self._bf16 = graph, precision == "bf16"

    def train(self, model: Model, batches: Batches, how: Training, test: Batches | None = None) -> Trained:
        """Train `model` in place."""
        before = 0 if test is None else self.evaluate(model, test)
        done = self._train(model, batches, how)
        finite = bool(torch.isfinite(model.values).all() and torch.isfinite(model.rest).all())
        right = None if test is None else (before, self.evaluate(model, test))
        return done._replace(finite=finite, right=right)

    def _train(self, model: Model, batches: Batches, how: Training) -> Trained:
        net = _Network(self.graph, model, self._bf16)
        u = [torch.zeros_like(w) for w in net.trained]
        if how.velocity is not None:
            u = [x.to(_DTYPE) for x in net.parts(how.velocity)]
        loss, seen, step = 0.0, 0, how.first_pass
        for number, (x, y) in enumerate(_batches(batches)):
            if how.stop is not None and how.stop[0]:
                return Trained(loss, seen, None, True)
            here = net.backward(x, y, how.seeds, step)
            step += 1
            if not np.isfinite(here):
                net.write(model)
                return Trained(loss, seen, (number, here))
            loss, seen = loss + here * len(y), seen + len(y)
            if how.rho:
                before = [w.clone() for w in net.trained]
                rate = how.rho / (net.norm() + 1e-12)
                for w, g in zip(net.trained, net.gradients(), strict=True):
                    w.add_(g, alpha=rate)
                net.backward(x, y, how.seeds, step)
                step += 1
                for w, old in zip(net.trained, before, strict=True):
                    w.copy_(old)
            scale = min(1.0, how.max_norm / (net.norm() + 1e-6)) if how.max_norm else 1.0
            offsets = (
                [w - p for w, p in zip(net.trained, net.parts(how.pull[0]), strict=True)] if how.pull else []
            )
            for w, g, v in zip(net.trained, net.gradients(), u, strict=True):
                v.mul_(how.momentum).add_(scale * g + how.weight_decay * w)
                w.sub_(how.lr * v)
            for w, offset in zip(net.trained, offsets, strict=bool(offsets)):
                w.sub_(offset, alpha=how.pull[1] if how.pull else 0.0)
        net.write(model)
        if how.velocity is not None:
            for to, v in zip(net.parts(how.velocity), u, strict=True):
                to.copy_(v)
        return Trained(loss, seen)

    def gradient(self, model: Model, batches: Batches, seeds: tuple[int, ...] = ()) -> tuple[Model, Trained]:
        """Return the gradient of the mean loss over all samples, in the form of a model."""
        net = _Network(self.graph, model, self._bf16)
        sums = [torch.zeros_like(w) for w in net.trained]
        loss, seen = 0.0, 0
        for step, (x, y) in enumerate(_batches(batches)):
            loss += net.backward(x, y, seeds, step) * len(y)
            seen += len(y)
            for total, g in zip(sums, net.gradients(), strict=True):
                total.add_(g, alpha=len(y))
        zeros = (torch.zeros_like(x) for x in (model.values, model.rest, model.integers))
        found = Model(model.layout, model.bitmap, *zeros)
        for to, total in zip(net.parts(found), sums, strict=True):
            to.copy_(total / max(seen, 1))
        return found, Trained(loss, seen)

    def evaluate(self, model: Model, batches: Batches) -> int:
        """Return how many samples get their own class."""
        net = _Network(self.graph, model, self._bf16)
        with torch.no_grad():
            return sum(int((net.forward(x, False).argmax(1) == y).sum()) for x, y in _batches(batches))

    def grow(
        self, model: Model, growth: Growth, batches: Batches, seeds: tuple[int, ...] = ()
    ) -> Bitmap | str:
        """Return RigL's next pattern by the gradient of the first batch."""
        net = _Network(self.graph, model, self._bf16)
        x, y = next(_batches(batches))
        net.backward(x, y, seeds, 0)
        for name, weight in net.weights.items():
            if name in model.layout.names:
                assert weight.grad is not None
                if not torch.isfinite(weight.grad).all():
                    return name
                growth.add(name, weight.grad.float())
        return growth.bitmap()


class _Network:
    """A graph with the weights of a model, whole and in float64."""

    def __init__(self, graph: Graph, model: Model, bf16: bool = False) -> None:
        self.graph, self.model, self._bf16 = graph, model, bf16
        self.values, self.rest = (x.to(_DTYPE) for x in _floats(model))
        self.integers = model.integers.clone()
        self.masks = bitmaps.to_mask(model.bitmap)
        self.weights: dict[str, Tensor] = {}
        self._grest = torch.zeros_like(self.rest)

    @property
    def trained(self) -> list[Tensor]:
        return [self.values, *(self.rest[a : a + n] for a, n in self.graph.trained)]

    def parts(self, model: Model) -> list[Tensor]:
        return [model.values, *(model.rest[a : a + n] for a, n in self.graph.trained)]

    def gradients(self) -> list[Tensor]:
        dense = [self.weights[name].grad.reshape(-1) for name in self.model.layout.names]  # type: ignore[union-attr]  # after backward
        packed = torch.cat(dense)[self.masks] if dense else self.values
        return [packed, *(self._grest[a : a + n] for a, n in self.graph.trained)]

    def norm(self) -> float:
        return float(
            torch.sqrt(sum((g.square().sum() for g in self.gradients()), torch.zeros((), dtype=_DTYPE)))
        )

    def write(self, model: Model) -> None:
        model.values.copy_(self.values)
        model.rest.copy_(self.rest)
        model.integers.copy_(self.integers)

    def backward(self, x: Tensor, y: Tensor, seeds: tuple[int, ...], step: int) -> float:
        self._leaf = self.rest.clone().requires_grad_()
        loss = F.cross_entropy(self.forward(x, True, seeds, step), y)
        loss.backward()
        self._grest = torch.zeros_like(self.rest) if self._leaf.grad is None else self._leaf.grad
        return loss.item()

    def forward(self, x: Tensor, training: bool, seeds: tuple[int, ...] = (), step: int = 0) -> Tensor:
        if not training:
            self._leaf = self.rest
        self._unpack()
        value = {0: self._stored(x.reshape(len(x), *self.graph.values[0]))}
        for one in self.graph.steps:
            value[one.y] = self._stored(self._apply(one, value, training, seeds, step))
        return value[self.graph.steps[-1].y].flatten(1)

    def _stored(self, value: Tensor) -> Tensor:
        """What is left of a value, and of its gradient, between two steps."""
        return _Rounded.apply(value) if self._bf16 else value

    def _unpack(self) -> None:
        layout = self.model.layout
        dense = torch.zeros(len(self.masks), dtype=_DTYPE)
        dense[self.masks] = self.values
        parts = dense.split(layout.segments.sizes) if layout.names else ()
        self.weights = {
            name: part.view(shape).clone().requires_grad_()
            for name, shape, part in zip(layout.names, layout.shapes, parts, strict=True)
        }

    def _at(self, place: int | None, length: int) -> Tensor | None:
        return None if place is None else self._leaf[place : place + length]

    def _apply(
        self, s: steps.Step, value: dict[int, Tensor], training: bool, seeds: tuple[int, ...], step: int
    ) -> Tensor:
        x = value[s.x]
        if isinstance(s, steps.Conv):
            g, w = s.geometry, s.weight
            weight = self.weights.get(w.name)
            if weight is None:
                weight = self._leaf[w.at : w.at + prod(w.shape)]
            how = g.stride, g.padding, g.dilation, s.groups
            shape = (g.out_channels, g.in_channels // s.groups, *g.kernel)
            y = F.conv2d(x, weight.view(shape), self._at(s.bias, g.out_channels), *how)
        elif isinstance(s, steps.GroupNorm):
            y = F.group_norm(x, s.groups, self._at(s.gamma, s.channels), self._at(s.beta, s.channels), s.eps)
        elif isinstance(s, steps.BatchNorm):
            y = self._batch_norm(s, x, training)
        elif isinstance(s, steps.Relu):
            y = F.relu(x)
        elif isinstance(s, steps.Add):
            y = x + value[s.other]
        elif isinstance(s, steps.MaxPool):
            y = F.max_pool2d(x, s.window.kernel, s.window.stride, s.window.padding)
        elif isinstance(s, steps.AveragePool):
            size = self.graph.values[s.y][1:]
            w2 = s.window
            y = (
                F.adaptive_avg_pool2d(x, size)
                if w2 is None
                else F.avg_pool2d(x, w2.kernel, w2.stride, w2.padding)
            )
        elif isinstance(s, steps.Flatten):
            return x.reshape(len(x), -1, 1, 1)
        elif isinstance(s, steps.Dropout):
            return self._drop(s, x, seeds, step) if training else x
        else:
            raise TypeError(f"expected a step, got {s}")
        return F.relu(y) if getattr(s, "relu", False) else y

    def _batch_norm(self, s: steps.BatchNorm, x: Tensor, training: bool) -> Tensor:
        gamma, beta = self._at(s.gamma, s.channels), self._at(s.beta, s.channels)
        if s.mean is None or s.var is None:
            return F.batch_norm(x, None, None, gamma, beta, True, 0.0, s.eps)
        momentum = s.momentum
        if training and s.count is not None:
            self.integers[s.count] += 1
        if momentum is None:
            momentum = 1.0 / float(self.integers[s.count]) if s.count is not None else 1.0
        mean, var = (self.rest[a : a + s.channels] for a in (s.mean, s.var))
        return F.batch_norm(x, mean, var, gamma, beta, training, momentum, s.eps)

    def _drop(self, s: steps.Dropout, x: Tensor, seeds: tuple[int, ...], step: int) -> Tensor:
        ones = torch.ones(prod(x.shape[1:]), len(x), dtype=torch.float32)
        scale = dropout(ones, s.p, seed=seeds[s.number], step=step)
        return x * scale.T.reshape(x.shape).to(_DTYPE)


class _Rounded(torch.autograd.Function):
    """To bfloat16 and back, forward and backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.bfloat16().to(_DTYPE)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        return dy.bfloat16().to(_DTYPE)


def _batches(batches: Batches) -> Iterator[tuple[Tensor, Tensor]]:
    data, moves = batches.data, batches.moves
    for epoch in range(batches.epochs):
        for start in range(0, batches.samples, batches.size):
            now = slice(
                epoch * batches.samples + start,
                epoch * batches.samples + min(start + batches.size, batches.samples),
            )
            chosen = batches.order[now]
            here = moves and moves.part(now)
            x = gather(data.x, chosen, data.mean, data.std, here)
            yield x.movedim(-1, 0).to(_DTYPE), torch.from_numpy(data.labels[chosen])


def _floats(model: Model) -> tuple[Tensor, Tensor]:
    return model.values, model.rest
