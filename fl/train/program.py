"""One client's turn as a program: epochs, tests and growth are one native call each (sparse_engine/program).

The model is trained where it lies, in its own arenas. Draws come from the same named streams as layer by
layer (fl/train/turn.py), and decisions are the same; sums are rounded in another order.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import ceil
from time import perf_counter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

import sparse_engine as se
from fl import rng
from fl.data import Dataset
from fl.data.batches import Draw, draw
from fl.data.dataset import X
from fl.errors import Diverged, Stopped
from fl.train.local import Local
from fl.train.report import Report
from fl.train.setting import Setting
from fl.train.stop import Stop
from fl.train.trainer import Gradient, Grown
from sparse_engine.program.batches import Batches, Data, Moves, Trained, Training
from sparse_engine.program.cpu.session import Session

_NO_SAMPLES = Draw(np.zeros(0, np.int64), None)
_SLOWER = "lower training.lr, or clip with training.max_norm"


class Parts(NamedTuple):
    """The two parts of a data set, as programs take them."""

    train: Data
    test: Data

    @classmethod
    def of(cls, data: Dataset) -> "Parts":
        mean, std = (np.array(values, np.float32) if values else None for values in (data.mean, data.std))
        train, test = (Data(_contiguous(p.x), p.labels, mean, std) for p in (data.train, data.test))
        return cls(train, test)


class ProgramTurn:
    """A trainer.Turn. `_ours`: nobody else has the model, so training may write into it."""

    def __init__(
        self, session: Session, data: Parts, setting: Setting, k: int, t: int, start: se.Model, stop: Stop
    ) -> None:
        self._session, self._data, self._setting, self._stop = session, data, setting, stop
        self.k, self.t = k, t
        self._model, self._ours = start, False

    def load(self, model: se.Model) -> None:
        if model is not self._model:
            self._model, self._ours = model, False

    def model(self) -> se.Model:
        self._ours = False
        return self._model

    def test(self) -> float | None:
        tests = self._tests()
        return None if tests is None else self._session.evaluate(self._model, tests) / tests.samples

    def train(self, local: Local) -> Report:
        return self._train(local, None)

    def train_and_test(self, local: Local) -> Report:
        return self._train(local, self._tests())

    def _train(self, local: Local, tests: Batches | None) -> Report:
        began, setting = perf_counter(), self._setting
        model = self._model if self._ours else self._model.clone()
        pull = local.pull
        how = Training(
            lr=local.lr,
            momentum=local.momentum,
            weight_decay=local.weight_decay,
            max_norm=local.max_norm,
            rho=local.rho,
            pull=None if pull is None else (pull.model.with_pattern(model.bitmap), local.lr * pull.strength),
            seeds=self._seeds(f"dropout{local.stream}"),
            stop=self._stop.flag,
        )
        stream = rng.stream(setting.seed, f"batches{local.stream}", self.t, self.k)
        epochs = [draw(setting.data, self._samples, stream) for _ in range(local.epochs)]
        given = self._batches(epochs or [_NO_SAMPLES], local.batch_size)
        done = self._session.train(model, given, how, tests)
        self._check(done)
        self._model, self._ours = model, True
        report = self._report(given, done, local.passes, perf_counter() - began)
        if done.right is None or tests is None:
            return report
        before, after = (right / tests.samples for right in done.right)
        return replace(report, accuracy_before=before, accuracy=after)

    def _tests(self) -> Batches | None:
        """The client's test samples; None where it has none."""
        indices = self._setting.partition.test.of(self.k)
        size = self._setting.training.batch_size
        return Batches(self._data.test, indices.astype(np.int64), size) if len(indices) else None

    def gradient(self) -> Gradient:
        began, setting = perf_counter(), self._setting
        stream = rng.stream(setting.seed, "gradient", self.t, self.k)
        epoch = draw(setting.data, stream.permutation(self._samples), stream)
        batches = self._batches([epoch], setting.training.batch_size)
        g, done = self._session.gradient(self._model, batches, self._seeds("gradient dropout"))
        self._check(done)
        return Gradient(g, self._report(batches, done, 1, perf_counter() - began))

    def grow(self, fraction: float, batches: int = 1) -> Grown:
        setting = self._setting
        stream = rng.stream(setting.seed, "grow", self.t, self.k)
        order, moves = draw(setting.data, self._samples, stream)
        size = min(batches * setting.training.batch_size, len(order))
        first = self._batches([Draw(order[:size], moves and moves.part(slice(size)))], size)
        growth = se.Growth(self._model, fraction)
        mask = self._session.grow(self._model, growth, first, self._seeds("grow dropout"))
        if isinstance(mask, str):
            raise self._not_finite(f"gradient of {mask}")
        return Grown(mask, Report(flop=setting.cost.dense_training(size)))

    def _report(self, given: Batches, done: Trained, passes: int, seconds: float) -> Report:
        cost = self._setting.cost
        return Report(
            loss=done.loss / done.samples if done.samples else None,
            samples=len(self._samples),
            seen=done.samples,
            steps=given.epochs * ceil(given.samples / given.size),
            flop=passes * cost.training(self._model.bitmap, done.samples),
            flop_dense=passes * cost.dense_training(done.samples),
            train_s=seconds,
        )

    def _batches(self, draws: Sequence[Draw], size: int) -> Batches:
        if len(draws) == 1:
            return Batches(self._data.train, draws[0].order, size, 1, draws[0].moves)
        moves = [epoch.moves for epoch in draws if epoch.moves is not None]
        order = np.concatenate([epoch.order for epoch in draws])
        return Batches(self._data.train, order, size, len(draws), Moves.joined(moves) if moves else None)

    @property
    def _samples(self) -> NDArray[np.integer]:
        """The client's training samples."""
        return self._setting.partition.train.of(self.k)

    def _seeds(self, purpose: str) -> tuple[int, ...]:
        """Of every dropout: those of fl/train/turn.py."""
        count = self._session.graph.num_dropouts
        return tuple(
            int(rng.stream(self._setting.seed, f"{purpose} {i}", self.t, self.k).integers(2**63))
            for i in range(count)
        )

    def _check(self, done: Trained) -> None:
        if done.stopped:
            raise Stopped
        if done.failed is not None:
            batch, loss = done.failed
            where = f"{self._where}, batch {batch}"
            raise Diverged(f"expected a finite loss, got {loss} ({where}): {_SLOWER}")
        if not done.finite:  # the loss is that before the last step
            raise self._not_finite("model")

    def _not_finite(self, what: str) -> Diverged:
        return Diverged(f"expected a {what} of finite numbers, got inf or NaN ({self._where}): {_SLOWER}")

    @property
    def _where(self) -> str:
        return f"client {self.k}, round {self.t}"


def _contiguous(x: X) -> X:
    """`x`, or a copy if its samples do not lie one after another."""
    return x if x.flags.c_contiguous else x.copy()
