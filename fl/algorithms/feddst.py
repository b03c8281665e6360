"""FedDST: FedAvg on one global mask that moves (Bibikar, Vikalo, Wang, Chen: AAAI 2022, arXiv 2112.09824).

    the server sends (w^t, m^t) to a random set S_t of clients; for k in S_t
    m_k = RigL of m^t at w^t: drop the smallest |w|, grow the largest gradients      every `interval` rounds,
    m_k = m^t                                                                         else
    w_k = E epochs of SGD on m_k from w^t
    w   = sum_k n_k w_k / sum of n_k over the k whose mask has the entry
    (w^{t+1}, m^{t+1}) = the largest |w| of every layer, as many as m^t has there

So the global model always has the density of its first mask, layer by layer. A client's message names only
what its mask has changed: the server knows the one that it sent. Accuracies are as FedAvg's
(fl/algorithms/fedavg.py); the authors of DA-DPFL test the global model.

Differs from the paper or the authors' code in:
- masks move before local training, as in the code of DA-DPFL's authors, so that a grown weight has all epochs
  to earn its place. FedDST's own code moves them after the last epoch by default: grown weights are then 0
  and stay only where every client dropped another
- what is dropped and grown again at once keeps its value
- the share that moves follows RigL's cosine over all rounds (there: over the first half)
- growth scores are gradients of cross-entropy on a fresh batch (DA-DPFL's authors: nll of raw logits)
- the mean weighs by samples, as the paper's (DA-DPFL's authors: equally), and the server keeps exactly k
  weights per layer (there: all that tie with the last)
- `interval` is 10, FedDST's own; DA-DPFL's authors chose from 1, 5, 10 and 20, their scripts have 5
"""

from functools import partial
from typing import Annotated, NamedTuple

from pydantic import Field

import sparse_engine as se
from fl.algorithms import fedavg
from fl.algorithms.base import Env, Round
from fl.algorithms.fedavg import Inputs, Server, Update
from fl.algorithms.messages import send
from fl.config import Count, Messages, Share
from fl.train.local import Local
from fl.train.report import Done, Report
from fl.train.trainer import Trainer


class Config(fedavg.Config):
    density: Annotated[float, Field(gt=0, le=1)] = 0.5
    """share of the weights that the mask keeps, divided over layers by ERK"""
    interval: Count = 10
    """the mask moves in every interval-th round"""
    alpha0: Share = 0.3
    """share of the weights that would move in round 0; falls to 0 as a cosine"""
    grow_batches: Count = 1
    """training batches whose mean gradient decides where masks grow"""


def init(env: Env) -> Server:
    layout = env.initial.layout
    shapes = dict(zip(layout.names, layout.shapes, strict=True))
    seed = int(env.rng("first mask").integers(2**63))
    mask = layout.bitmap_of(se.erk_masks(shapes, env.config.density, seed=seed))
    return fedavg.first(env.initial.with_pattern(mask), env)


def run_round(state: Server, t: int, env: Env) -> Round:
    cfg: Config = env.config
    moves = (t + 1) % cfg.interval == 0
    fraction = se.rigl_fraction(t, env.num_rounds, cfg.alpha0) if moves else 0.0
    growth = Growth(fraction, cfg.grow_batches) if fraction else None
    local = env.local(t, max_norm=cfg.max_norm)
    update = partial(local_update, t=t, local=local, growth=growth, messages=env.messages)
    done = env.map(update, fedavg.inputs(state, t, env))
    uploads = [*done.values.values()]
    if not uploads:  # nobody is there
        return fedavg.ended(state, state.model, done, t, env)
    mean = se.weighted_average([u.sent.model for u in uploads], [u.samples for u in uploads])
    return fedavg.ended(state, se.keep_largest(mean, state.model.bitmap.counts), done, t, env)


client_models, server_model = fedavg.client_models, fedavg.server_model


class Growth(NamedTuple):
    """How a mask moves: the share of its weights, by the gradient of so many batches."""

    fraction: float
    batches: int


def local_update(
    trainer: Trainer,
    k: int,
    given: Inputs,
    *,
    t: int,
    local: Local,
    growth: Growth | None,
    messages: Messages,
) -> Done[Update]:
    """Move the mask in some rounds, train, send."""
    turn, work = trainer.turn(k, t, given.model), Report()
    if growth:
        mask, work = turn.grow(*growth)
        turn.load(given.model.with_pattern(mask))
    report = turn.train_and_test(local).plus(work)
    trained = turn.model()
    sent = send(trained, k, t, messages, given.upload.get(), known=given.model.bitmap)
    return Done(Update(trained, sent, trainer.num_samples(k), report.accuracy), report)
