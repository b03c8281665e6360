"""A client's work, done by a worker. A client is only its compressed state and its samples; a worker owns a
network, into which it loads one client after the other.

    train   load, test, E epochs of SGD, test:   w <- w - eta (g + lambda w) on the mask,  eta = lr * decay^t
    grow    the dense gradient of one batch, a layer at a time, moves the mask (RigL)

What the worker sees on the way (accuracy, loss, operations, seconds) is collected in its Report, beside what
the algorithm computes. Kernels are "sparse" (only stored weights are touched) or "dense" (plain torch with
masks): the same numbers up to rounding.
"""

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import perf_counter

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

import sparse_engine as se
from fl import config, rng
from fl.cost import Cost
from fl.data import Dataset, Partition, batches, evaluation_batches


class Diverged(RuntimeError):
    """Training left the range of numbers."""


class Stopped(Exception):
    """Somebody asked the worker to stop."""


@dataclass
class Report:
    """What a worker saw while it worked for one client."""

    accuracy: float | None = None
    accuracy_before: float | None = None
    loss: float | None = None
    samples: int = 0
    flop: int = 0
    flop_dense: int = 0
    train_s: float = 0.0


@dataclass(frozen=True)
class Setting:
    """What all workers of a run share, and none changes."""

    training: config.Training
    exempt: tuple[str, ...]
    seed: int
    data: Dataset
    partition: Partition
    network: nn.Module  # a dense one with w0: workers copy it
    initial: se.State  # w0, everything stored
    cost: Cost
    augment: bool | None = None  # None: as the data set says


class Worker:
    """One network, and everything that is done with it. Not for two threads at once."""

    def __init__(self, setting: Setting, stopped: Callable[[], bool] = lambda: False) -> None:
        self.setting, self.initial, self.report = setting, setting.initial, Report()
        self._stopped = stopped
        self._engine = _ENGINES[setting.training.kernels](setting)
        self._dropouts = _seeded_dropouts(self._engine.net)

    def seed(self, purpose: str, t: int = 0, k: int = 0) -> int:
        """A number for what takes a seed, from the stream of that name."""
        return int(rng.stream(self.setting.seed, purpose, t, k).integers(2**63))

    def train(self, k: int, start: se.State, t: int) -> se.State:
        """The model that local training in round t makes of `start`, in memory of its own."""
        cfg, engine = self.setting.training, self._engine
        engine.load(start)
        self.report.accuracy_before = self._test(k)
        self._prepare("dropout", t, k)
        optimizer = engine.optimizer(learning_rate(cfg, t))
        began = perf_counter()
        losses, seen = 0.0, 0
        for x, y in self._epochs(k, t):
            loss = engine.backward(x, y)
            optimizer()
            losses, seen = losses + len(y) * self._finite(loss, k, t), seen + len(y)
        self.report.train_s += perf_counter() - began
        self.report.accuracy = self._test(k) if seen else self.report.accuracy_before
        self.report.loss = losses / seen if seen else None
        self.report.samples = len(self.setting.partition.train.of(k))
        self.report.flop += self.setting.cost.training(start, seen)
        self.report.flop_dense += self.setting.cost.dense_training(seen)
        return engine.state()

    def grow(self, k: int, state: se.State, t: int, fraction: float, batches: int = 1) -> se.Bitmap:
        """RigL's next pattern of `state`, grown by the gradient of a fresh batch (or `batches` at once)."""
        x, y = self._draw("grow", k, t, batches * self.setting.training.batch_size)
        self._engine.load(state)
        self._prepare("grow dropout", t, k)
        growth = se.Growth(state, fraction)
        self._engine.dense_gradients(x, y, growth.add)
        self.report.flop += self.setting.cost.dense_training(len(y))
        return growth.bitmap()

    def _epochs(self, k: int, t: int) -> Iterator[tuple[Tensor, Tensor]]:
        cfg, generator = self.setting.training, rng.stream(self.setting.seed, "batches", t, k)
        indices = self.setting.partition.train.of(k)
        for _ in range(cfg.epochs):
            for batch in self._batches(indices, cfg.batch_size, generator):
                if self._stopped():
                    raise Stopped
                yield batch

    def _draw(self, purpose: str, k: int, t: int, size: int) -> tuple[Tensor, Tensor]:
        generator = rng.stream(self.setting.seed, purpose, t, k)
        return next(self._batches(self.setting.partition.train.of(k), size, generator))

    def _batches(
        self, indices: NDArray[np.integer], size: int, generator: np.random.Generator
    ) -> Iterator[tuple[Tensor, Tensor]]:
        return batches(self.setting.data, indices, size, generator, augment=self.setting.augment)

    def _test(self, k: int) -> float | None:
        """Accuracy on the client's own test samples; None where it has none."""
        indices = self.setting.partition.test.of(k)
        net = self._engine.net.eval()
        right = 0
        with torch.no_grad():
            for x, y in evaluation_batches(self.setting.data, indices, self.setting.training.batch_size):
                right += int((net(x).argmax(1) == y).sum())
        return right / len(indices) if len(indices) else None

    def _prepare(self, purpose: str, t: int, k: int) -> None:
        self._engine.net.train()
        for i, dropout in enumerate(self._dropouts):
            dropout.generator = rng.torch_stream(self.setting.seed, f"{purpose} {i}", t, k)

    def _finite(self, loss: Tensor, k: int, t: int) -> float:
        value = loss.item()
        if not math.isfinite(value):
            raise Diverged(
                f"expected a finite loss, got {value} (client {k}, round {t}): "
                "lower training.lr, or clip with training.max_norm"
            )
        return value


def learning_rate(cfg: config.Training, t: int) -> float:
    return cfg.lr * cfg.lr_decay**t


class _Sparse:
    """Only stored weights are touched."""

    def __init__(self, setting: Setting) -> None:
        self.cfg, self.exempt = setting.training, setting.exempt
        self.net = se.sparsify(setting.network, masks={}, exempt=setting.exempt)

    def load(self, state: se.State) -> None:
        se.load(self.net, state)

    def state(self) -> se.State:
        return se.compress(self.net, exempt=self.exempt)

    def optimizer(self, lr: float) -> Callable[[], object]:
        cfg = self.cfg
        return se.SparseSGD(self.net, lr, cfg.momentum, cfg.weight_decay, max_norm=cfg.max_norm).step

    def backward(self, x: Tensor, y: Tensor) -> Tensor:
        """Gradients of the mean cross-entropy in every parameter; returns the loss."""
        self.net.zero_grad(set_to_none=True)
        loss = F.cross_entropy(self.net(x), y)
        loss.backward()
        return loss.detach()

    def dense_gradients(self, x: Tensor, y: Tensor, use: Callable[[str, Tensor], None]) -> None:
        """`use(name, gradient)` of every prunable weight, one layer's gradient in memory at a time."""
        with se.dense_gradients(self.net, use):
            self.backward(x, y)


class _Dense:
    """Plain torch: dense weights, zeros outside the mask, gradients multiplied by it."""

    def __init__(self, setting: Setting) -> None:
        self.cfg, self.exempt = setting.training, setting.exempt
        self.net = copy.deepcopy(setting.network)
        self.masks: dict[str, Tensor] = {}

    def load(self, state: se.State) -> None:
        se.load(self.net, state)
        self.masks = se.masks(state)

    def state(self) -> se.State:
        return se.compress(self.net, self.masks, exempt=self.exempt)

    def optimizer(self, lr: float) -> Callable[[], object]:
        cfg, parameters = self.cfg, [*self.net.parameters()]
        sgd = torch.optim.SGD(parameters, lr, momentum=cfg.momentum, weight_decay=cfg.weight_decay)

        def step() -> None:
            if cfg.max_norm is not None:
                nn.utils.clip_grad_norm_(parameters, cfg.max_norm)
            sgd.step()

        return step

    def backward(self, x: Tensor, y: Tensor) -> Tensor:
        loss = self._backward(x, y)
        for name, weight in self._weights():
            assert weight.grad is not None
            weight.grad.mul_(self.masks[name])
        return loss

    def dense_gradients(self, x: Tensor, y: Tensor, use: Callable[[str, Tensor], None]) -> None:
        self._backward(x, y)
        for name, weight in self._weights():
            assert weight.grad is not None
            use(name, weight.grad)
            weight.grad = None

    def _backward(self, x: Tensor, y: Tensor) -> Tensor:
        self.net.zero_grad(set_to_none=True)
        loss = F.cross_entropy(self.net(x), y)
        loss.backward()
        return loss.detach()

    def _weights(self) -> Iterator[tuple[str, nn.Parameter]]:
        return ((name, w) for name, w in self.net.named_parameters() if name in self.masks)


_ENGINES: dict[str, type[_Sparse] | type[_Dense]] = {"sparse": _Sparse, "dense": _Dense}


class _Dropout(nn.Module):
    """Dropout with a generator of its own: torch's draws from one that all threads share."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p, self.generator = p, torch.Generator()

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        kept = torch.rand(x.shape, generator=self.generator) >= self.p
        return x * kept / (1 - self.p)


def _seeded_dropouts(net: nn.Module) -> list[_Dropout]:
    """Replaces the network's dropouts by ours, and returns them."""
    found = [(path, module) for path, module in net.named_modules() if isinstance(module, nn.Dropout)]
    for path, module in found:
        parent, _, name = path.rpartition(".")
        setattr(net.get_submodule(parent), name, _Dropout(module.p))
    return [module for module in net.modules() if isinstance(module, _Dropout)]
