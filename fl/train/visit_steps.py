"""A visit (fl/train/visit.py) one thing after the other, by the turns of any trainer."""

import sparse_engine as se
from fl.train.trainer import Trainer
from fl.train.visit import Start, Visit, Visited


def by_steps(trainer: Trainer, k: int, t: int, start: Start, visit: Visit) -> Visited:
    """The visit of client k in round t, one thing after the other."""
    turn = trainer.turn(k, t, se.average(start.own, start.neighbours, mask=start.mask))
    move = visit.move
    by_scores = move is not None and move.by_last_batch
    report = turn.train_and_test(visit.local, scores=True) if by_scores else turn.train_and_test(visit.local)
    trained = turn.model()
    drift = None
    if visit.drift is not None:
        origin = trainer.initial.with_pattern(start.first_mask or start.mask)
        drift = se.drift(trained, origin, squared=visit.drift == "squared")
    pruned = trained
    if visit.prune is not None:
        pruned = se.prune_pqi(trained, visit.prune.config, target_density=visit.prune.target_density)
        turn.load(pruned)
    if move is None:
        return Visited(trained, pruned, report, drift)
    if move.grow == "random":
        seed = trainer.seed("grow", t, k)
        grown = se.rigl(pruned, None, move.fraction, grow="random", seed=seed).bitmap
        return Visited(trained, pruned, report, drift, grown)
    mask, work = turn.grow_by_scores(move.fraction) if by_scores else turn.grow(move.fraction, move.batches)
    return Visited(trained, pruned, report.plus(work), drift, mask)
