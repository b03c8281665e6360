"""One client's turn as a program: epochs, tests and growth are one native call each (sparse_engine/program).

The model is trained where it lies, in its own arenas. Draws come from the same named streams as layer by
layer (fl/train/turn.py), and decisions are the same; sums are rounded in another order.
"""

from dataclasses import replace
from math import ceil
from time import perf_counter
from typing import Protocol

import torch
from torch import Tensor

import sparse_engine as se
from fl import rng
from fl.errors import Diverged, Stopped
from fl.train.draws import Draws, Parts
from fl.train.local import Local
from fl.train.report import Report
from fl.train.setting import Setting
from fl.train.stop import Stop
from fl.train.trainer import Gradient, Grown
from sparse_engine.program.batches import Batches, Trained, Training
from sparse_engine.program.steps import Graph

_SLOWER = "lower training.lr, or clip with training.max_norm"


class OneModel(Protocol):
    """A session that trains one model: that of the CPU, or a group of one on a GPU."""

    @property
    def graph(self) -> Graph: ...
    def train(
        self, model: se.Model, batches: Batches, how: Training, test: Batches | None = None
    ) -> Trained: ...
    def gradient(
        self, model: se.Model, batches: Batches, seeds: tuple[int, ...] = ()
    ) -> tuple[se.Model, Trained]: ...
    def evaluate(self, model: se.Model, batches: Batches) -> int: ...
    def grow(
        self, model: se.Model, growth: se.Growth, batches: Batches, seeds: tuple[int, ...] = ()
    ) -> se.Bitmap | str: ...


class ProgramTurn:
    """A trainer.Turn. `_ours`: nobody else has the model, so training may write into it."""

    def __init__(
        self, session: OneModel, data: Parts, setting: Setting, k: int, t: int, start: se.Model, stop: Stop
    ) -> None:
        self._session, self._setting, self._stop = session, setting, stop
        self._draws = Draws(data, setting, k, t)
        self.k, self.t = k, t
        self._model, self._ours = start, False
        self._scores: Tensor | None = None

    def load(self, model: se.Model) -> None:
        if model is not self._model:
            self._model, self._ours = model, False

    def model(self) -> se.Model:
        self._ours = False
        return self._model

    def test(self) -> float | None:
        tests = self._draws.tests()
        return self._session.evaluate(self._model, tests) / tests.samples if tests.samples else None

    def train(self, local: Local) -> Report:
        self._scores = None
        return self._train(local, None)

    def train_and_test(self, local: Local, *, scores: bool = False) -> Report:
        numel = self._model.bitmap.segments.numel
        self._scores = torch.zeros(numel, dtype=torch.float32) if scores else None
        return self._train(local, self._draws.tests(local.batch_size))

    def _train(self, local: Local, tests: Batches | None) -> Report:
        began = perf_counter()
        model = self._model if self._ours else self._model.clone()
        how = training_of(local, self._seeds(f"dropout{local.stream}"), self._stop, model, self._scores)
        given = self._draws.training(local)
        done = self._session.train(model, given, how, tests if tests and tests.samples else None)
        checked(done, self._where)
        self._model, self._ours = model, True
        num_tests = 0 if tests is None else tests.samples
        return self._report(given, done, local.passes, perf_counter() - began, num_tests)

    def gradient(self) -> Gradient:
        began, batches = perf_counter(), self._draws.gradient()
        g, done = self._session.gradient(self._model, batches, self._seeds("gradient dropout"))
        checked(done, self._where)
        return Gradient(g, self._report(batches, done, 1, perf_counter() - began))

    def grow(self, fraction: float, batches: int = 1) -> Grown:
        first = self._draws.growth(batches)
        growth = se.Growth(self._model, fraction)
        mask = self._session.grow(self._model, growth, first, self._seeds("grow dropout"))
        if isinstance(mask, str):
            raise not_finite(f"gradient of {mask}", self._where)
        return Grown(mask, Report(flop=self._setting.cost.dense_training(first.size)))

    def grow_by_scores(self, fraction: float) -> Grown:
        assert self._scores is not None, "no training kept scores"
        layout = self._model.layout
        growth, parts = se.Growth(self._model, fraction), self._scores.split(layout.segments.sizes)
        for name, part in reversed([*zip(layout.names, parts, strict=True)]):  # as a pass backward meets them
            if not torch.isfinite(part).all():
                raise not_finite(f"gradient of {name}", self._where)
        growth.add_all(dict(zip(layout.names, parts, strict=True)))
        return Grown(growth.bitmap(), Report())

    def _report(self, given: Batches, done: Trained, passes: int, seconds: float, tests: int = 0) -> Report:
        samples = len(self._draws.samples)
        report = report_of(done, self._setting, self._model.bitmap, passes, samples, tests, given.size)
        return replace(report, train_s=seconds)

    def _seeds(self, purpose: str) -> tuple[int, ...]:
        return seeds_of(self._session, self._setting, purpose, self.t, self.k)

    @property
    def _where(self) -> str:
        return f"client {self.k}, round {self.t}"


def training_of(
    local: Local, seeds: tuple[int, ...], stop: Stop, model: se.Model | None, scores: Tensor | None = None
) -> Training:
    """How a training of a program steps. `model`: the one that is trained, if `local` pulls it."""
    pull = None
    if local.pull is not None:
        assert model is not None
        pull = (local.pull.model.with_pattern(model.bitmap), local.lr * local.pull.strength)
    return Training(
        lr=local.lr,
        momentum=local.momentum,
        weight_decay=local.weight_decay,
        max_norm=local.max_norm,
        rho=local.rho,
        pull=pull,
        seeds=seeds,
        stop=stop.flag,
        scores=scores,
    )


def report_of(
    done: Trained, setting: Setting, mask: se.Bitmap, passes: int, samples: int, tests: int, batch: int
) -> Report:
    """What a training on `mask` found, of a client with so many samples and test samples, by batches of that
    size."""
    before = after = None
    if done.right is not None and tests:
        before, after = (right / tests for right in done.right)
    scored = setting.cost.scoring(mask, done.scored) if done.scored else 0
    return Report(
        accuracy_before=before,
        accuracy=after,
        loss=done.loss / done.samples if done.samples else None,
        samples=samples,
        seen=done.samples,
        steps=done.samples // max(samples, 1) * ceil(samples / batch),
        flop=passes * setting.cost.training(mask, done.samples) + scored,
        flop_dense=passes * setting.cost.dense_training(done.samples),
    )


def seeds_of(session: OneModel, setting: Setting, purpose: str, t: int, k: int) -> tuple[int, ...]:
    """Of every dropout: those of fl/train/turn.py."""
    return tuple(
        int(rng.stream(setting.seed, f"{purpose} {i}", t, k).integers(2**63))
        for i in range(session.graph.num_dropouts)
    )


def checked(done: Trained, where: str) -> None:
    """Stopped, or Diverged: it has not come to a good end."""
    if done.stopped:
        raise Stopped
    if done.failed is not None:
        batch, loss = done.failed
        raise Diverged(f"expected a finite loss, got {loss} ({where}, batch {batch}): {_SLOWER}")
    if not done.finite:  # the loss is that before the last step
        raise not_finite("model", where)


def not_finite(what: str, where: str) -> Diverged:
    return Diverged(f"expected a {what} of finite numbers, got inf or NaN ({where}): {_SLOWER}")
