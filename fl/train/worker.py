"""The trainer of a worker. A client is only its compressed model and its samples; a worker owns a network,
into which it loads one client after the other.

Kernels are "sparse" (only stored weights are touched) or "dense" (plain torch with masks): the same numbers
up to rounding.
"""

from collections.abc import Callable

import sparse_engine as se
from fl import rng
from fl.train.dense import Dense
from fl.train.engine import Engine
from fl.train.layers import Layers
from fl.train.local import Local
from fl.train.setting import Setting
from fl.train.turn import EngineTurn

_ENGINES: dict[str, type[Layers] | type[Dense]] = {"sparse": Layers, "dense": Dense}


class Worker:
    """A trainer.Trainer with one network. Not for two threads at once."""

    def __init__(self, setting: Setting, stopped: Callable[[], bool] = lambda: False) -> None:
        """`stopped` is asked before every batch: once it says so, training raises Stopped."""
        self.setting, self._stopped = setting, stopped
        self._engine: Engine = _ENGINES[setting.training.kernels](setting.network, setting.exempt)

    @property
    def initial(self) -> se.Model:
        return self.setting.initial

    def warm_up(self) -> None:
        """What the first training would do besides: torch imports a thousand modules for an optimizer."""
        self._engine.load(self.initial)
        self._engine.optimizer(Local.of(self.setting.training, 0, lr=0.0))

    def turn(self, k: int, t: int, start: se.Model) -> EngineTurn:
        return EngineTurn(self._engine, self.setting, k, t, start, self._stopped)

    def num_samples(self, k: int) -> int:
        return len(self.setting.partition.train.of(k))

    def seed(self, purpose: str, t: int = 0, k: int = 0) -> int:
        return int(rng.stream(self.setting.seed, purpose, t, k).integers(2**63))
