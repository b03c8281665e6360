"""One trainer, executor and Env for tests of algorithms: training is arithmetic, clients come one by one."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import NamedTuple

import sparse_engine as se
from fl.algorithms.base import Env
from fl.config import Devices, Training
from fl.rng import stream
from fl.train.cost import Cost, Costs
from fl.train.local import Local
from fl.train.report import Report
from fl.train.trainer import Gradient, Grown
from fl.train.visit_steps import by_steps
from fl.train.work import Outcome


class Trained(NamedTuple):
    """One training as it was asked for."""

    k: int
    t: int
    local: Local


class Growth(NamedTuple):
    k: int
    t: int
    fraction: float
    batches: int


def _refuse(*_):
    raise AssertionError("expected a function for it, got a turn that needs one")


@dataclass
class Trainer:
    """A trainer.Trainer whose clients train by the function `train(k, model, local)`, and likewise."""

    initial: se.Model | None = None
    train: Callable[[int, se.Model, Local], se.Model] = _refuse
    grow: Callable[[int, se.Model, float], se.Bitmap] = _refuse
    gradient: Callable[[int, se.Model], se.Model] = _refuse
    test: Callable[[int, se.Model], float | None] = lambda k, model: 0.5
    samples: list[int] | None = None
    trained: list[Trained] = field(default_factory=list)
    growths: list[Growth] = field(default_factory=list)
    tested: list[int] = field(default_factory=list)
    starts: dict[int, se.Model] = field(default_factory=dict)  # what every client trained from last

    def turn(self, k, t, start):
        return Turn(self, k, t, start)

    def visits(self, t, starts, visit):
        return {k: by_steps(self, k, t, start, visit) for k, start in starts.items()}

    def num_samples(self, k):
        return self.samples[k] if self.samples else 1

    def seed(self, purpose, t=0, k=0):
        return int(stream(0, purpose, t, k).integers(2**63))

    def told(self, *names):
        """These fields of all trainings."""
        return [tuple(getattr(one.local, name) for name in names) for one in self.trained]


class Turn:
    """A trainer.Turn."""

    def __init__(self, trainer, k, t, start):
        self._of, self._k, self._t, self._model = trainer, k, t, start

    def train(self, local):
        self._of.trained.append(Trained(self._k, self._t, local))
        self._of.starts[self._k] = self._model
        self._model = self._of.train(self._k, self._model, local)
        return Report(loss=1.0, samples=self._of.num_samples(self._k), flop=100, flop_dense=1000, train_s=1.0)

    def train_and_test(self, local, *, scores=False):
        self._scores = scores
        before = self.test()
        report = self.train(local)
        after = before if report.loss is None else self.test()
        return replace(report, accuracy_before=before, accuracy=after)

    def test(self):
        self._of.tested.append(self._k)
        return self._of.test(self._k, self._model)

    def grow(self, fraction, batches=1):
        self._of.growths.append(Growth(self._k, self._t, fraction, batches))
        return Grown(self._of.grow(self._k, self._model, fraction), Report(flop=7))

    def grow_by_scores(self, fraction):
        assert self._scores
        return self.grow(fraction, batches=0)

    def gradient(self):
        return Gradient(self._of.gradient(self._k, self._model), Report(loss=2.0, flop=30))

    def model(self):
        return self._model

    def load(self, model):
        self._model = model


class Serial:
    """A work.Executor of one trainer. Outcomes come in the order of `tasks`, or backwards."""

    def __init__(self, trainer, backwards=False):
        self.trainer, self.waves, self._step = trainer, [], -1 if backwards else 1

    def run(self, work, tasks):
        self.waves.append(list(tasks))
        for k in [*tasks][:: self._step]:
            yield Outcome(k, *work(self.trainer, k, tasks[k]))


def costs(layout, samples):
    """One operation per weight, and none for what is not prunable."""
    weights = sum(layout.segments.sizes)
    return Costs(Cost((1,) * len(layout.names), 0, 2 * weights), samples)


def make_env(config, num_clients, executor=None, *, initial=None, num_rounds=100, seed=0, **parts):
    """An Env; what is not given is None, or as by default. Clients have a sample each."""
    work = costs(initial.layout, [1] * num_clients) if initial else None
    return Env(
        config=config,
        num_clients=num_clients,
        num_rounds=num_rounds,
        seed=seed,
        initial=initial,
        executor=executor,
        **{"topology": None, "devices": Devices(), "training": Training(), "costs": work} | parts,
    )


def trained(worker, k, t, start, **changes):
    """The model that a real worker makes of `start`, its report, and the turn."""
    turn = worker.turn(k, t, start)
    report = turn.train(Local.of(worker.setting.training, t, **changes))
    return SimpleNamespace(model=turn.model(), report=report, turn=turn)


def accuracy(worker, k, model):
    return worker.turn(k, 0, model).test()
