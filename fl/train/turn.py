"""One client's turn on an engine: the model is loaded once, and taken out when somebody asks for it.

train      E epochs of SGD on the client's samples
gradient   of the mean loss over a client's samples, in the form of a model
grow       the dense gradient of one batch, a layer at a time, moves the mask (RigL)
test       how well the model does on the client's test samples
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from time import perf_counter

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import sparse_engine as se
from fl import rng
from fl.data import batches, evaluation_batches
from fl.errors import Diverged, Stopped
from fl.train.cost import last_batch
from fl.train.engine import Engine
from fl.train.local import Local
from fl.train.report import Report
from fl.train.setting import Setting
from fl.train.trainer import Gradient, Grown

_SLOWER = "lower training.lr, or clip with training.max_norm"
Batches = Iterator[tuple[Tensor, Tensor]]
Step = Callable[[Tensor, Tensor], Tensor]


class EngineTurn:
    """A trainer.Turn. The model is in the engine, at rest in `_model`, or both."""

    def __init__(
        self,
        engine: Engine,
        setting: Setting,
        k: int,
        t: int,
        start: se.Model,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self._engine, self._setting, self._stopped = engine, setting, stopped
        self.k, self.t = k, t
        self._model: se.Model | None = start
        self._loaded = False
        self._scores: dict[str, Tensor] | None = None  # dense gradients of a training's last batch

    def load(self, model: se.Model) -> None:
        if model is not self._model:
            self._model, self._loaded = model, False

    def model(self) -> se.Model:
        if self._model is None:
            self._model = self._engine.model()
            for tensor in (self._model.values, self._model.rest):
                self._check_finite("model", tensor)  # the loss is that before the last step
        return self._model

    def test(self) -> float | None:
        self._enter()
        setting = self._setting
        indices = setting.partition.test.of(self.k)
        right = 0
        size, order = setting.training.batch_size, self._engine.batch_last
        for x, y in evaluation_batches(setting.data, indices, size, batch_last=order):
            right += int((self._engine.predict(x) == y).sum())
        return right / len(indices) if len(indices) else None

    def train(self, local: Local) -> Report:
        self._scores = None
        return self._train(local)

    def _train(self, local: Local) -> Report:
        start = self.model()
        towards: list[Tensor] = []
        if local.pull:
            towards = self._engine.parameters_of(local.pull.model.with_pattern(start.bitmap))
            self._loaded = False
        self._enter()
        self._draw_dropout(f"dropout{local.stream}")
        step = self._engine.trainer(local, towards)
        scores, seen, total = self._scores, 0, local.epochs * len(self._samples)
        self._model = None

        def train(x: Tensor, y: Tensor) -> Tensor:
            nonlocal seen
            seen += len(y)
            if scores is None or seen < total:
                return step(x, y, None)
            return step(x, y, lambda name, gradient: scores.update({name: gradient.detach().clone()}))

        report = self._run(train, self._epochs(local), start, passes=local.passes)
        if not scores:
            return report
        cost = self._setting.cost.scoring(start.bitmap, last_batch(len(self._samples), local))
        return replace(report, flop=report.flop + cost)

    def train_and_test(self, local: Local, *, scores: bool = False) -> Report:
        before = self.test()
        self._scores = {} if scores else None
        report = self._train(local) if scores else self.train(local)
        after = before if report.loss is None else self.test()
        return replace(report, accuracy_before=before, accuracy=after)

    def gradient(self) -> Gradient:
        model, engine = self.model(), self._engine
        self._enter()
        self._draw_dropout("gradient dropout")
        sums = engine.zeros()

        def add(x: Tensor, y: Tensor) -> Tensor:
            loss = engine.backward(x, y)
            engine.add_gradients(sums, len(y))
            return loss

        self._loaded = False
        report = self._run(add, self._once(), model)
        for total in sums:
            total.div_(max(report.samples, 1))
        return Gradient(engine.model_of(sums), report)

    def grow(self, fraction: float, batches: int = 1) -> Grown:
        generator = self._stream("grow")
        x, y = next(self._batches(self._samples, batches * self._setting.training.batch_size, generator))
        model = self.model()
        self._enter()
        self._draw_dropout("grow dropout")
        growth = se.Growth(model, fraction)

        def add(name: str, gradient: Tensor) -> None:
            self._check_finite(f"gradient of {name}", gradient)
            growth.add(name, gradient)

        self._loaded = False  # the pass moves what norms keep
        self._engine.dense_gradients(x, y, add)
        return Grown(growth.bitmap(), Report(flop=self._setting.cost.dense_training(len(y))))

    def grow_by_scores(self, fraction: float) -> Grown:
        assert self._scores is not None, "no training kept scores"
        model = self.model()
        growth = se.Growth(model, fraction)
        for name, shape in zip(model.layout.names, model.layout.shapes, strict=True):
            gradient = self._scores.get(name, torch.zeros(shape))  # nothing was trained
            self._check_finite(f"gradient of {name}", gradient)
            growth.add(name, gradient)
        return Grown(growth.bitmap(), Report())

    def _enter(self) -> None:
        """From here on the engine holds the model."""
        if not self._loaded:
            assert self._model is not None
            self._engine.load(self._model)
            self._loaded = True

    def _run(self, step: Step, given: Batches, model: se.Model, passes: int = 1) -> Report:
        """Runs `step` on every batch; reports `passes` forward and backward passes of `model` over them."""
        began, losses, seen, steps = perf_counter(), 0.0, 0, 0
        for number, (x, y) in enumerate(given):
            loss = step(x, y)
            losses, seen = losses + len(y) * self._finite(loss, number), seen + len(y)
            steps = number + 1
        cost = self._setting.cost
        return Report(
            loss=losses / seen if seen else None,
            samples=len(self._samples),
            seen=seen,
            steps=steps,
            flop=passes * cost.training(model.bitmap, seen),
            flop_dense=passes * cost.dense_training(seen),
            train_s=perf_counter() - began,
        )

    def _epochs(self, local: Local) -> Batches:
        generator = self._stream(f"batches{local.stream}")
        for _ in range(local.epochs):
            for batch in self._batches(self._samples, local.batch_size, generator):
                if self._stopped():
                    raise Stopped
                yield batch

    def _once(self) -> Batches:
        """All of the client's training samples once."""
        generator = self._stream("gradient")
        indices = generator.permutation(self._samples)
        return self._batches(indices, self._setting.training.batch_size, generator)

    def _batches(self, indices: NDArray[np.integer], size: int, generator: np.random.Generator) -> Batches:
        order = self._engine.batch_last
        return batches(self._setting.data, indices, size, generator, batch_last=order)

    @property
    def _samples(self) -> NDArray[np.integer]:
        """The client's training samples."""
        return self._setting.partition.train.of(self.k)

    def _stream(self, purpose: str) -> np.random.Generator:
        return rng.stream(self._setting.seed, purpose, self.t, self.k)

    def _draw_dropout(self, purpose: str) -> None:
        """Training mode, with dropout from the client's own streams."""
        self._engine.start_training(lambda i: int(self._stream(f"{purpose} {i}").integers(2**63)))

    def _finite(self, loss: Tensor, batch: int) -> float:
        value = loss.item()
        if not math.isfinite(value):
            where = f"{self._where}, batch {batch}"
            raise Diverged(f"expected a finite loss, got {value} ({where}): {_SLOWER}")
        return value

    def _check_finite(self, what: str, tensor: Tensor) -> None:
        if not torch.isfinite(tensor).all():
            raise Diverged(f"expected a {what} of finite numbers, got inf or NaN ({self._where}): {_SLOWER}")

    @property
    def _where(self) -> str:
        return f"client {self.k}, round {self.t}"
