"""Which samples a client's turn sees, in which order: the same draws whoever trains it (fl/train/turn.py)."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fl import rng
from fl.data import Dataset
from fl.data.batches import Draw, draw
from fl.data.dataset import X
from fl.train.local import Local
from fl.train.setting import Setting
from sparse_engine.program.batches import Batches, Data, Moves, batch_size

_NO_SAMPLES = Draw(np.zeros(0, np.int64), None)


class Parts(NamedTuple):
    """The two parts of a data set, as programs take them."""

    train: Data
    test: Data

    @classmethod
    def of(cls, data: Dataset) -> "Parts":
        mean, std = (np.array(values, np.float32) if values else None for values in (data.mean, data.std))
        train, test = (Data(_contiguous(p.x), p.labels, mean, std) for p in (data.train, data.test))
        return cls(train, test)


class Draws:
    """The batches of client k in round t."""

    def __init__(self, data: Parts, setting: Setting, k: int, t: int) -> None:
        self._data, self._setting = data, setting
        self.k, self.t = k, t

    @property
    def samples(self) -> NDArray[np.integer]:
        """The client's training samples."""
        return self._setting.partition.train.of(self.k)

    @property
    def num_tests(self) -> int:
        return len(self._setting.partition.test.of(self.k))

    def training_size(self, local: Local) -> int:
        """Of the batches of `training`."""
        return self._size(local.batch_size)

    def training(self, local: Local) -> Batches:
        """All epochs."""
        stream = self._stream(f"batches{local.stream}")
        epochs = [draw(self._setting.data, self.samples, stream) for _ in range(local.epochs)]
        return self._batches(epochs or [_NO_SAMPLES], self._size(local.batch_size))

    def tests(self, batch: int | None = None) -> Batches:
        """The client's test samples, which may be none."""
        indices = self._setting.partition.test.of(self.k)
        size = self._size(batch or self._setting.training.batch_size)
        return Batches(self._data.test, indices.astype(np.int64), size)

    def gradient(self) -> Batches:
        """All training samples once."""
        stream = self._stream("gradient")
        epoch = draw(self._setting.data, stream.permutation(self.samples), stream)
        return self._batches([epoch], self._size(self._setting.training.batch_size))

    def growth(self, batches: int) -> Batches:
        """One batch as large as `batches`."""
        setting = self._setting
        order, moves = draw(setting.data, self.samples, self._stream("grow"))
        size = min(batches * setting.training.batch_size, len(order))
        return self._batches([Draw(order[:size], moves and moves.part(slice(size)))], size)

    def _batches(self, draws: Sequence[Draw], size: int) -> Batches:
        if len(draws) == 1:
            return Batches(self._data.train, draws[0].order, size, 1, draws[0].moves)
        moves = [epoch.moves for epoch in draws if epoch.moves is not None]
        order = np.concatenate([epoch.order for epoch in draws])
        return Batches(self._data.train, order, size, len(draws), Moves.joined(moves) if moves else None)

    def _size(self, wanted: int) -> int:
        """Of batches."""
        return batch_size(wanted, len(self.samples), self.num_tests)

    def _stream(self, purpose: str) -> np.random.Generator:
        return rng.stream(self._setting.seed, purpose, self.t, self.k)


def _contiguous(x: X) -> X:
    """`x`, or a copy if its samples do not lie one after another."""
    return x if x.flags.c_contiguous else x.copy()
