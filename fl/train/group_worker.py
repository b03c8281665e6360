"""The trainer of a worker on a GPU: visits are done for a group of clients at a time, every layer of all of
them in one launch. Turns, of algorithms that take no visits, are those of a group of one.

Models come from memory of the CPU and go back there. Means over neighbours, drift and growth at random are
done there too, natively: the same numbers as without a GPU, for the same inputs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from time import perf_counter

import sparse_engine as se
from fl import rng
from fl.train.draws import Draws, Parts
from fl.train.program import ProgramTurn, checked, not_finite, report_of, training_of
from fl.train.report import Report
from fl.train.setting import Setting
from fl.train.stop import Stop
from fl.train.trainer import Turn
from fl.train.visit import Start, Visit, Visited
from sparse_engine.program.gpu import session as gpu
from sparse_engine.program.gpu.fit import clients_at_once
from sparse_engine.program.gpu.one import OneClient
from sparse_engine.program.gpu.plan import NotOnGpu
from sparse_engine.program.gpu.session import GroupSession

MOST = 256  # clients of a group


class GroupWorker:
    """A trainer.Trainer on one GPU. Not for two threads at once."""

    most = MOST

    def __init__(self, setting: Setting, stop: Stop, device: str) -> None:
        graph = setting.path.graph
        assert graph is not None, "only programs run on a GPU: fl/train/places.py"
        self.setting, self._stop = setting, stop
        self._session, self._data = GroupSession(graph, device), Parts.of(setting.data)
        self._one = OneClient(self._session)

    @property
    def initial(self) -> se.Model:
        return self.setting.initial

    def warm_up(self) -> None:
        """Send the data set."""
        self._session.resident(self._data.train)
        self._session.resident(self._data.test)

    def turn(self, k: int, t: int, start: se.Model) -> Turn:
        return ProgramTurn(self._one, self._data, self.setting.at(t), k, t, start, self._stop)

    def visits(self, t: int, starts: Mapping[int, Start], visit: Visit) -> dict[int, Visited]:
        numbers, done = list(starts), dict[int, Visited]()
        stored = max(start.mask.nnz for start in starts.values())
        at_once = min(MOST, clients_at_once(self._session, stored, visit.local.batch_size))
        groups = -(-len(numbers) // at_once)
        size = -(-len(numbers) // groups)
        for at in range(0, len(numbers), size):
            some = {k: starts[k] for k in numbers[at : at + size]}
            done |= _Group(self, self._session, self._data, t, visit).run(some, self._stop)
        return done

    def num_samples(self, k: int) -> int:
        return len(self.setting.partition.train.of(k))

    def seed(self, purpose: str, t: int = 0, k: int = 0) -> int:
        return int(rng.stream(self.setting.seed, purpose, t, k).integers(2**63))


class _Group:
    """The visits of some clients: those of visit_steps.by_steps, all at once."""

    def __init__(self, worker: GroupWorker, session: GroupSession, data: Parts, t: int, visit: Visit) -> None:
        self._worker, self._session, self._data = worker, session, data
        self._setting, self._t, self._visit = worker.setting.at(t), t, visit

    def run(self, starts: Mapping[int, Start], stop: Stop) -> dict[int, Visited]:
        began = perf_counter()
        draws = [Draws(self._data, self._setting, k, self._t) for k in starts]
        models = [se.average(s.own, s.neighbours, mask=s.mask) for s in starts.values()]
        done = self._done(draws, models, stop)
        reports = [self._report(*row) for row in zip(draws, done, strict=True)]
        drifts = [self._drift(*pair) for pair in zip(models, starts.values(), strict=True)]
        masks = [self._mask(*row) for row in zip(draws, done, strict=True)]
        seconds = (perf_counter() - began) / len(models)
        rows = zip(starts, done, reports, drifts, masks, strict=True)
        return {
            k: Visited(one.model, one.pruned, replace(report, train_s=seconds), drift, mask)
            for k, one, report, drift, mask in rows
        }

    def _done(self, draws: Sequence[Draws], models: Sequence[se.Model], stop: Stop) -> list[gpu.Visited]:
        visit, local = self._visit, self._visit.local
        given, tests = [d.training(local) for d in draws], [d.tests(local.batch_size) for d in draws]
        how = training_of(local, (), stop, models[0] if local.pull is not None else None)
        prune = None if visit.prune is None else gpu.Prune(visit.prune.config, visit.prune.target_density)
        grow, move = None, visit.move
        if move is not None and move.by_last_batch:
            raise NotOnGpu(
                'there is no GPU version of growth by the last batch (grow_from = "last_batch") yet'
            )
        if move is not None and move.grow == "gradient":
            size = move.batches * self._setting.training.batch_size
            grow = gpu.Grow(move.fraction, [d.growth(move.batches) for d in draws], size)
        try:
            return self._session.visit(
                models, given, how, tests, prune=prune, grow=grow, batch=local.batch_size
            )
        except gpu.NotFinite as wrong:
            raise not_finite(f"gradient of {wrong.name}", self._where(draws[wrong.client].k)) from None

    def _report(self, draws: Draws, done: gpu.Visited) -> Report:
        checked(done.trained, self._where(draws.k))
        local, setting, n = self._visit.local, self._setting, len(draws.samples)
        sizes = n, draws.num_tests, draws.training_size(local)
        report = report_of(done.trained, setting, done.model.bitmap, local.passes, *sizes)
        move = self._visit.move
        if move is None or move.grow == "random":
            return report
        grown = min(move.batches * setting.training.batch_size, n)
        return report.plus(Report(flop=setting.cost.dense_training(grown)))

    def _drift(self, model: se.Model, start: Start) -> float | None:
        if self._visit.drift is None:
            return None
        origin = self._worker.initial.with_pattern(start.first_mask or start.mask)
        return se.drift(model, origin, squared=self._visit.drift == "squared")

    def _mask(self, draws: Draws, done: gpu.Visited) -> se.Bitmap | None:
        move = self._visit.move
        if move is None or move.grow == "gradient":
            return done.mask
        seed = self._worker.seed("grow", self._t, draws.k)
        return se.rigl(done.pruned, None, move.fraction, grow="random", seed=seed).bitmap

    def _where(self, k: int) -> str:
        return f"client {k}, round {self._t}"
