"""Gossip: everybody takes the mean with its neighbours' models of the last round, then trains.

w_k <- SGD from  share w_k + (1 - share) / |G_k| sum_{j in G_k} w_j
"""

from dataclasses import dataclass
from functools import partial

import sparse_engine as se
from fl.algorithms.base import Env, Round, exchange, message_sizes, together
from fl.algorithms.messages import Sent, send
from fl.config import Section, Share
from fl.train.local import Local
from fl.train.report import Done
from fl.train.trainer import Trainer, train_and_test


class Config(Section):
    share: Share = 0.5
    """weight of the client's own model"""


@dataclass(frozen=True)
class Client:
    model: se.Model
    sent: Sent


@dataclass(frozen=True)
class State:
    clients: tuple[Client, ...]


def init(env: Env) -> State:
    return State((Client(env.initial, Sent.exact(env.initial)),) * env.num_clients)


def run_round(state: State, t: int, env: Env) -> Round:
    neighbours = env.topology.neighbours(t)
    tasks = {
        k: (client, [state.clients[j].sent.model for j in neighbours.of(k)])
        for k, client in enumerate(state.clients)
    }
    how = {"t": t, "local": env.local(t), "share": env.config.share, "messages": env.messages}
    done = env.map(partial(local_update, **how), tasks)
    clients = tuple(done.values[k] for k in range(env.num_clients))
    return Round(
        State(clients),
        models=[client.model for client in clients],
        schedule=together(neighbours),
        traffic=exchange(neighbours, message_sizes([client.sent for client in state.clients])),
        reports=done.reports,
    )


def local_update(trainer: Trainer, k: int, given, *, t, local: Local, share, messages) -> Done[Client]:
    own, others = given
    weights = [share, *[(1 - share) / len(others)] * len(others)] if others else [1.0]
    turn = trainer.turn(k, t, se.combine([own.model, *others], weights))
    report = train_and_test(turn, local)
    trained = turn.model()
    return Done(Client(trained, send(trained, k, t, messages, own.sent)), report)
