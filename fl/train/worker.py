"""A client's work, done by a worker. A client is only its compressed state and its samples; a worker owns a
network, into which it loads one client after the other.

    train      load, test, E epochs of SGD, test:   w <- w - eta (g + lambda w) on the mask,  eta = lr decay^t
               pull:   w <- w - eta (g + lambda w + kappa (w - w'))                                  (Ditto)
               rho:    g is taken at w + rho g / |g|                                                 (SAM)
    gradient   of the mean loss over a client's samples, in the form of a model
    grow       the dense gradient of one batch, a layer at a time, moves the mask (RigL)
    test       how well a model does on a client's test samples

What the worker sees on the way (accuracy, loss, operations, seconds) is collected in its Report, beside what
the algorithm computes. Kernels are "sparse" (only stored weights are touched) or "dense" (plain torch with
masks): the same numbers up to rounding.
"""

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

import sparse_engine as se
from fl import config, rng
from fl.data import Dataset, Partition, batches, evaluation_batches
from fl.errors import Diverged, Stopped
from fl.train.cost import Cost

_SLOWER = "lower training.lr, or clip with training.max_norm"


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
class Pull:
    """Training is drawn towards a model: the gradient of strength / 2 |w - model|^2 is added."""

    model: se.Model
    strength: float


@dataclass(frozen=True)
class Setting:
    """What all workers of a run share, and none changes."""

    training: config.Training
    exempt: tuple[str, ...]
    seed: int
    data: Dataset
    partition: Partition
    network: nn.Module  # a dense one with w0: workers copy it
    initial: se.Model  # w0, everything stored
    cost: Cost
    augment: bool | None = None  # None: as the data set says


class Worker:
    """One network, and everything that is done with it. Not for two threads at once."""

    def __init__(self, setting: Setting, stopped: Callable[[], bool] = lambda: False) -> None:
        self.setting, self.initial, self.report = setting, setting.initial, Report()
        self._stopped = stopped
        self._engine = _ENGINES[setting.training.kernels](setting)
        self._dropouts = _seeded_dropouts(self._engine.net)

    def warm_up(self) -> None:
        """What the first training would do besides: torch imports a thousand modules for an optimizer."""
        self._engine.load(self.initial)
        self._engine.optimizer(self.setting.training, lr=0.0)

    def seed(self, purpose: str, t: int = 0, k: int = 0) -> int:
        """A number for what takes a seed, from the stream of that name."""
        return int(rng.stream(self.setting.seed, purpose, t, k).integers(2**63))

    def train(
        self,
        k: int,
        start: se.Model,
        t: int,
        *,
        pull: Pull | None = None,
        rho: float = 0.0,
        part: str = "",
        test: bool = True,
        **changes: Any,
    ) -> se.Model:
        """The model that local training in round t makes of `start`, in memory of its own.

        `changes`: to the keys of the section `training`. `part` names a training of its own, with batches of
        its own, where a client trains twice in a round. `test=False` reports no accuracy.
        """
        cfg, engine = _changed(self.setting.training, changes), self._engine
        towards = self._parameters(pull.model.with_pattern(start.bitmap)) if pull else []
        engine.load(start)
        before = self._test(k) if test else None
        self._prepare(f"dropout{part}", t, k)
        lr = learning_rate(cfg, t)
        step = engine.optimizer(cfg, lr)
        if pull:
            step = self._pulled(step, towards, lr * pull.strength)
        began, losses, seen = perf_counter(), 0.0, 0
        for x, y in self._epochs(k, t, cfg, f"batches{part}"):
            loss = engine.backward(x, y)
            if rho:
                self._backward_uphill(x, y, rho)
            step()
            losses, seen = losses + len(y) * self._finite(loss, k, t), seen + len(y)
        self._worked(k, start, losses, seen, perf_counter() - began, passes=2 if rho else 1)
        if test:
            self.report.accuracy_before = before
            self.report.accuracy = self._test(k) if seen else before
        trained = engine.state()
        for tensor in (trained.values, trained.rest):
            self._check_finite("model", tensor, k, t)  # the loss is that before the last step
        return trained

    def gradient(self, k: int, state: se.Model, t: int, samples: int | None = None) -> se.Model:
        """The gradient of the mean loss where `state` stores entries, over all samples of the client or over
        `samples` drawn in round t. Float buffers are 0."""
        self._engine.load(state)
        self._prepare("gradient dropout", t, k)
        sums = [torch.zeros_like(p) for p in self._trained()]
        losses, seen, began = 0.0, 0, perf_counter()
        for x, y in self._samples(k, t, samples):
            loss = self._engine.backward(x, y)
            for total, p in zip(sums, self._trained(), strict=True):
                assert p.grad is not None
                total.add_(p.grad, alpha=len(y))
            losses, seen = losses + len(y) * self._finite(loss, k, t), seen + len(y)
        for total, p in zip(sums, self._trained(), strict=True):
            p.data.copy_(total.div_(max(seen, 1)))
        self._worked(k, state, losses, seen, perf_counter() - began)
        return self._without_buffers(self._engine.state())

    def test(self, k: int, state: se.Model) -> float | None:
        """Accuracy of `state` on the client's own test samples; None where it has none."""
        self._engine.load(state)
        return self._test(k)

    def num_samples(self, k: int) -> int:
        """Training samples of client k."""
        return len(self.setting.partition.train.of(k))

    def grow(self, k: int, state: se.Model, t: int, fraction: float, batches: int = 1) -> se.Bitmap:
        """RigL's next pattern of `state`, grown by the gradient of a fresh batch (or `batches` at once)."""
        x, y = self._draw("grow", k, t, batches * self.setting.training.batch_size)
        self._engine.load(state)
        self._prepare("grow dropout", t, k)
        growth = se.Growth(state, fraction)

        def add(name: str, gradient: Tensor) -> None:
            self._check_finite(f"gradient of {name}", gradient, k, t)
            growth.add(name, gradient)

        self._engine.dense_gradients(x, y, add)
        self.report.flop += self.setting.cost.dense_training(len(y))
        return growth.bitmap()

    def _trained(self) -> list[nn.Parameter]:
        return [p for p in self._engine.net.parameters() if p.requires_grad]

    def _parameters(self, state: se.Model) -> list[Tensor]:
        """Those of `state`, as the network has them."""
        self._engine.load(state)
        return [p.detach().clone() for p in self._trained()]

    def _worked(
        self, k: int, state: se.Model, losses: float, seen: int, seconds: float, passes: int = 1
    ) -> None:
        """Reports forward and backward passes of `state` over `seen` samples."""
        report, cost = self.report, self.setting.cost
        report.train_s += seconds
        report.loss = losses / seen if seen else None
        report.samples = self.num_samples(k)
        report.flop += passes * cost.training(state, seen)
        report.flop_dense += passes * cost.dense_training(seen)

    def _pulled(self, step: Callable[[], object], towards: list[Tensor], rate: float) -> Callable[[], object]:
        """`step`, and then as far towards a model as the weights before it say."""
        trained = self._trained()

        def both() -> None:
            offsets = [p.detach() - w for p, w in zip(trained, towards, strict=True)]
            step()
            for p, offset in zip(trained, offsets, strict=True):
                p.data.sub_(offset, alpha=rate)

        return both

    def _backward_uphill(self, x: Tensor, y: Tensor, rho: float) -> None:
        """Gradients at w + rho g / |g| in place of those at w."""
        here = [(p, p.detach().clone(), p.grad) for p in self._trained() if p.grad is not None]
        norm = float(torch.stack([g.norm() for _, _, g in here]).norm())
        for p, _, g in here:
            p.data.add_(g, alpha=rho / (norm + 1e-12))
        self._engine.backward(x, y)
        for p, w, _ in here:
            p.data.copy_(w)

    def _without_buffers(self, state: se.Model) -> se.Model:
        names = {name for name, _ in self.setting.network.named_parameters()}
        for name, x in state.rest_tensors().items():
            if name not in names:
                x.zero_()
        return state

    def _samples(self, k: int, t: int, count: int | None) -> Iterator[tuple[Tensor, Tensor]]:
        """All of the client's training samples once, or `count` of them, batch by batch."""
        generator = rng.stream(self.setting.seed, "gradient", t, k)
        indices = generator.permutation(self.setting.partition.train.of(k))[:count]
        return self._batches(indices, self.setting.training.batch_size, generator)

    def _epochs(self, k: int, t: int, cfg: config.Training, purpose: str) -> Iterator[tuple[Tensor, Tensor]]:
        generator = rng.stream(self.setting.seed, purpose, t, k)
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
            raise Diverged(f"expected a finite loss, got {value} (client {k}, round {t}): {_SLOWER}")
        return value

    def _check_finite(self, what: str, tensor: Tensor, k: int, t: int) -> None:
        if not torch.isfinite(tensor).all():
            raise Diverged(
                f"expected a {what} of finite numbers, got inf or NaN (client {k}, round {t}): {_SLOWER}"
            )


def _changed(cfg: config.Training, changes: dict[str, Any]) -> config.Training:
    unknown = sorted(changes.keys() - type(cfg).model_fields.keys())
    if unknown:
        raise ValueError(f"expected keys of training, got {unknown}")
    return cfg.model_copy(update=changes) if changes else cfg


def learning_rate(cfg: config.Training, t: int) -> float:
    return cfg.lr * cfg.lr_decay**t


class _Sparse:
    """Only stored weights are touched."""

    def __init__(self, setting: Setting) -> None:
        self.exempt = setting.exempt
        self.net = se.sparsify(setting.network, masks={}, exempt=setting.exempt)

    def load(self, state: se.Model) -> None:
        se.load(self.net, state)

    def state(self) -> se.Model:
        return se.compress(self.net, exempt=self.exempt)

    def optimizer(self, cfg: config.Training, lr: float) -> Callable[[], object]:
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
        self.exempt = setting.exempt
        self.net = copy.deepcopy(setting.network)
        self.masks: dict[str, Tensor] = {}

    def load(self, state: se.Model) -> None:
        se.load(self.net, state)
        self.masks = se.masks(state)

    def state(self) -> se.Model:
        return se.compress(self.net, self.masks, exempt=self.exempt)

    def optimizer(self, cfg: config.Training, lr: float) -> Callable[[], object]:
        parameters = [*self.net.parameters()]
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
