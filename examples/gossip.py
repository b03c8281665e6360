"""Gossip: everybody takes the mean with its neighbours' models of the last round, then trains.

w_k <- SGD from  share w_k + (1 - share) / |G_k| sum_{j in G_k} w_j
"""

from dataclasses import dataclass
from functools import partial

import sparse_engine as se
from fl.algorithms.base import (
    Env,
    Inputs,
    Peers,
    Round,
    exchange,
    inputs,
    message_sizes,
    models_of,
    together,
)
from fl.algorithms.messages import Sent, send
from fl.config import Messages, Section, Share
from fl.train.local import Local
from fl.train.report import Done
from fl.train.trainer import Trainer


class Config(Section):
    share: Share = 0.5
    """weight of the client's own model"""


@dataclass(frozen=True)
class Client:
    model: se.Model
    sent: Sent


def init(env: Env) -> Peers[Client]:
    return Peers(env.alike(Client(env.initial, Sent.exact(env.initial))))


def run_round(state: Peers[Client], t: int, env: Env) -> Round:
    neighbours = env.topology.neighbours(t)
    how = {"t": t, "local": env.local(t), "share": env.config.share, "messages": env.messages}
    done = env.map(partial(local_update, **how), inputs(state.clients, neighbours))
    clients = state.clients.with_(done.values)
    return Round(
        Peers(clients),
        models=models_of(clients),
        schedule=together(neighbours),
        traffic=exchange(neighbours, message_sizes(client.sent for client in state.clients)),
        reports=done.reports,
    )


def local_update(
    trainer: Trainer, k: int, given: Inputs[Client], *, t: int, local: Local, share: float, messages: Messages
) -> Done[Client]:
    own, others = given.client, given.neighbours
    weights = [share, *[(1 - share) / len(others)] * len(others)] if others else [1.0]
    turn = trainer.turn(k, t, se.combine([own.model, *others], weights))
    report = turn.train_and_test(local)
    trained = turn.model()
    return Done(Client(trained, send(trained, k, t, messages, own.sent)), report)
