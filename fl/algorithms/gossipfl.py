"""GossipFL: gossip of half a model in groups, as the paper compares it (Tang, Shi, Li, Chu: IEEE TPDS 2023).

    groups of M + 1 clients, drawn anew each round;  m^t: a random half of the weights, the same for all
    x_k = mean of z_j over the group of k   on m^t
    x_k = z_k                               elsewhere
    z_k = E epochs of SGD from x_k

Models are dense. Everybody draws m^t from the same seed, so a message has no mask: the values on m^t, and
biases, norm parameters and exempt weights (about 1 % of a model), which take the group's mean as a whole.
Everybody starts from one w0, and trains at once on the messages of the last round.

Where K is no multiple of M + 1, the last group is smaller, and one client that is left alone goes on with its
own model, as in a matching of an odd number: nobody takes more than M messages. That is the topology `random`
(with `redraw = false` the groups stay); in any other the group of a client is itself and its neighbours.

A client that was absent gives the message that it wrote last, on the mask of the round that it missed: it
counts in the mean where that mask and m^t meet.

Differs from the paper or the authors' code in:
- GossipFL itself matches pairs by bandwidth; random groups of M + 1 are what DA-DPFL's authors ran
- m^t has exactly half of every layer, rounded down (there: each weight with probability 1/2)
- the authors' code spreads clients that are left over on the groups, so that some take more than M models,
  and never mixes biases and norm parameters, although it sends them
"""

from dataclasses import dataclass
from functools import partial
from typing import Annotated

import numpy as np
from pydantic import Field

import sparse_engine as se
from fl.algorithms.base import Env, Inputs, Peers, Round, at_once
from fl.algorithms.messages import Sent, send
from fl.config import Messages, Positive, Section
from fl.train.local import Local
from fl.train.report import Done
from fl.train.trainer import Trainer
from fl.world.topology import Neighbours, from_links


class Config(Section):
    share: Annotated[float, Field(gt=0, le=1)] = 0.5
    """of the weights that are sent and mixed in a round"""
    max_norm: Positive | None = 10.0
    """clip the norm of the gradient"""


@dataclass(frozen=True)
class Client:
    model: se.Model  # z, trained
    sent: Sent  # the message of its part on the next round's mask


def init(env: Env) -> Peers[Client]:
    mask = shared_mask(env, 0)
    first = Client(env.initial, send(env.initial.with_pattern(mask), 0, 0, env.messages, known=mask))
    return Peers(env.alike(first))


def run_round(state: Peers[Client], t: int, env: Env) -> Round:
    local, mask = env.local(t, max_norm=env.config.max_norm), shared_mask(env, t + 1)
    now = None if env.attendance.there is None else shared_mask(env, t)
    update = partial(local_update, t=t, now=now, next_mask=mask, local=local, messages=env.messages)
    return at_once(state, groups(env, t), update, env)


def local_update(
    trainer: Trainer,
    k: int,
    given: Inputs[Client],
    *,
    t: int,
    now: se.Bitmap | None,
    next_mask: se.Bitmap,
    local: Local,
    messages: Messages,
) -> Done[Client]:
    """Mix on the mask, train, send what the next mask holds. `now`: m^t, where messages may be older."""
    own = given.client
    mean = se.average(own.model, given.neighbours, mask=own.sent.model.bitmap if now is None else now)
    turn = trainer.turn(k, t, se.overlay(own.model, mean))
    report = turn.train_and_test(local)
    model = turn.model()
    sent = send(model.with_pattern(next_mask), k, t, messages, own.sent, known=next_mask)
    return Done(Client(model, sent), report)


def shared_mask(env: Env, t: int) -> se.Bitmap:
    """m^t."""
    layout, seed = env.initial.layout, int(env.rng("shared mask", t).integers(2**63))
    shapes = dict(zip(layout.names, layout.shapes, strict=True))
    return layout.bitmap_of(se.uniform_masks(shapes, env.config.share, seed=seed))


def groups(env: Env, t: int) -> Neighbours:
    """Whose messages everybody takes in round t."""
    graph = env.topology
    if graph.kind != "random":
        return graph.neighbours(t)
    lot = env.rng("groups", t if graph.redraw else 0).permutation(env.num_clients)
    size = graph.degree + 1
    found = np.split(lot, range(size, env.num_clients, size))
    takers = np.concatenate([np.repeat(group, len(group)) for group in found])
    givers = np.concatenate([np.tile(group, len(group)) for group in found])
    return from_links(env.num_clients, takers[takers != givers], givers[takers != givers])
