"""Visits of clients in one native call: most of a round of small networks would be Python's otherwise.

Not where masks are pruned (the size of a pruned model is not known before), nor where they move at random,
nor where training is drawn towards a model: those go by steps.
"""

from collections.abc import Mapping
from dataclasses import replace

from fl import rng
from fl.data.batches import PAD
from fl.train.draws import Parts
from fl.train.program import checked, not_finite, report_of, seeds_of, training_of
from fl.train.setting import Setting
from fl.train.stop import Stop
from fl.train.visit import Start, Visit, Visited
from sparse_engine.model.average import same_layout, total_drift
from sparse_engine.program import visits as native
from sparse_engine.program.cpu.session import Session
from sparse_engine.program.cpu.visits import Visits
from sparse_engine.program.visits import Growing, Plan, Share, Visitor


def possible(visit: Visit) -> bool:
    """Can it be one native call?"""
    at_random = visit.move is not None and visit.move.grow == "random"
    return visit.prune is None and visit.local.pull is None and not at_random


class NativeVisits:
    """Those of one worker."""

    def __init__(self, session: Session, data: Parts, setting: Setting, stop: Stop) -> None:
        self._setting, self._stop, self._session = setting, stop, session
        partition = setting.partition
        train = Share(data.train, partition.train.indptr, partition.train.indices)
        test = Share(data.test, partition.test.indptr, partition.test.indices)
        self._visits = Visits(session, train, test)
        self._last: tuple[Visit, int, Plan] | None = None

    def run(self, t: int, starts: Mapping[int, Start], visit: Visit) -> dict[int, Visited]:
        """The visits of these clients in round t, one after the other: those of visit_steps.by_steps."""
        visitors = [self._visitor(k, t, start, visit) for k, start in starts.items()]
        done = self._visits.run(self._plan(t, visit), visitors)
        pairs = zip(starts.items(), done, strict=False)  # one that failed, below, is the last
        return {k: self._visited(k, t, start, visit, one) for (k, start), one in pairs}

    def _visitor(self, k: int, t: int, start: Start, visit: Visit) -> Visitor:
        models = [start.own, *start.neighbours]
        for j, model in enumerate(models[1:]):
            if model.layout is not start.own.layout:
                same_layout(start.own, model, f"neighbours[{j}]")
        dropouts = self._session.graph.num_dropouts
        purposes = (f"dropout{visit.local.stream}", "grow dropout") if dropouts else ()
        seeds = [seeds_of(self._session, self._setting, purpose, t, k) for purpose in purposes]
        return Visitor(k, models, start.mask, start.first_mask, *seeds)

    def _visited(self, k: int, t: int, start: Start, visit: Visit, done: native.Visited) -> Visited:
        setting, local, where = self._setting, visit.local, f"client {k}, round {t}"
        checked(done.trained, where)
        if isinstance(done.grown, str):
            raise not_finite(f"gradient of {done.grown}", where)
        shares = setting.partition.train, setting.partition.test
        samples, tests = (int(share.indptr[k + 1] - share.indptr[k]) for share in shares)
        size = local.batch_size
        report = report_of(done.trained, setting, start.mask, local.passes, samples, tests, size)
        growth = setting.cost.dense_training(done.samples) if done.samples else 0
        drift = None if done.norms is None else total_drift(done.norms, visit.drift == "squared")
        report = replace(report, flop=report.flop + growth, train_s=done.seconds)
        return Visited(done.model, done.model, report, drift, done.grown, done.nbytes)

    def _plan(self, t: int, visit: Visit) -> Plan:
        """That of all clients of a round: made once."""
        if self._last is None or self._last[0] is not visit or self._last[1] != t:
            self._last = (visit, t, self._made(t, visit))
        return self._last[2]

    def _made(self, t: int, visit: Visit) -> Plan:
        setting, local, move = self._setting, visit.local, visit.move
        growing = None
        if move is not None:
            fresh = 0 if move.by_last_batch else move.batches * setting.training.batch_size
            growing = Growing(fraction=move.fraction, batch=fresh, order=rng.key(setting.seed, "grow"))
        return Plan(
            round=t,
            epochs=local.epochs,
            batch=local.batch_size,
            training=training_of(local, (), self._stop, None),
            order=rng.key(setting.seed, f"batches{local.stream}"),
            padding=PAD,
            moved=setting.data.augment,
            growing=growing,
            origin=setting.initial if visit.drift is not None else None,
            message=visit.message,
        )
