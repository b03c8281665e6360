"""The trainer of a worker. A client is only its compressed model and its samples; a worker owns what trains:
a program, or a network into which it loads one client after the other.

program   whole trainings in one native call (fl/train/program.py)
layers    layer by layer on the sparse kernels
dense     plain torch with masks

All three make the same decisions and the same numbers up to rounding.
"""

from collections.abc import Mapping

import sparse_engine as se
from fl import rng
from fl.train import native_visit, places
from fl.train.dense import Dense
from fl.train.draws import Parts
from fl.train.engine import Engine
from fl.train.group_worker import GroupWorker
from fl.train.layers import Layers
from fl.train.local import Local
from fl.train.native_visit import NativeVisits
from fl.train.program import ProgramTurn
from fl.train.setting import Setting
from fl.train.stop import Stop
from fl.train.trainer import Turn
from fl.train.turn import EngineTurn
from fl.train.visit import Start, Visit, Visited
from fl.train.visit_steps import by_steps
from sparse_engine.program.cpu.session import Session


def worker_on(place: str, setting: Setting, stop: Stop) -> "Worker | GroupWorker":
    """The trainer of a worker that computes there."""
    return Worker(setting, stop) if place == places.CPU else GroupWorker(setting, stop, place)


class Worker:
    """A trainer.Trainer with one network, on the CPU. Not for two threads at once.

    `most`: clients that it is best given at once. A native call for several leaves the interpreter's lock
    alone for longer.
    """

    most = 16

    def __init__(self, setting: Setting, stop: Stop | None = None) -> None:
        """`stop` is looked at before every batch: once it is set, training raises Stopped."""
        self.setting, self._stop = setting, stop or Stop()
        self._engine: Engine | None = None
        graph = setting.path.graph
        if graph is not None:
            self._session, self._data = Session(graph, setting.training.precision), Parts.of(setting.data)
            self._native = NativeVisits(self._session, self._data, setting, self._stop)
        else:
            self._engine = _engine(setting)

    @property
    def initial(self) -> se.Model:
        return self.setting.initial

    def warm_up(self) -> None:
        """What the first training would do besides: torch imports a thousand modules for an optimizer."""
        if self._engine is not None:
            self._engine.load(self.initial)
            self._engine.optimizer(Local.of(self.setting.training, 0, lr=0.0))

    def turn(self, k: int, t: int, start: se.Model) -> Turn:
        if self._engine is None:
            return ProgramTurn(self._session, self._data, self.setting, k, t, start, self._stop)
        return EngineTurn(self._engine, self.setting, k, t, start, self._stop.is_set)

    def visits(self, t: int, starts: Mapping[int, Start], visit: Visit) -> dict[int, Visited]:
        if self._engine is None and native_visit.possible(visit):
            return self._native.run(t, starts, visit)
        return {k: by_steps(self, k, t, start, visit) for k, start in starts.items()}

    def num_samples(self, k: int) -> int:
        return len(self.setting.partition.train.of(k))

    def seed(self, purpose: str, t: int = 0, k: int = 0) -> int:
        return int(rng.stream(self.setting.seed, purpose, t, k).integers(2**63))


def _engine(setting: Setting) -> Engine:
    if setting.training.kernels == "dense":
        return Dense(setting.network, setting.exempt)
    return Layers(setting.network, setting.exempt, setting.training.precision)
