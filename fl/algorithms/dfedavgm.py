"""DFedAvgM: SGD with momentum, then a mean of quantised changes over neighbours (Sun, Li, Wang: IEEE TPAMI
2023, arXiv 2104.11375, Algorithm 2).

    x_k <- x_k + mean of Q(z_j - x_j) over j in G_k and k itself
    z_k  = E epochs of SGD with momentum from x_k
    Q(d) = s round(d / s),  s = max |d| / 32767 of the whole difference:  16 bits per number, and one scale

It is the client's own x_k that the mean is added to, as published, not the mean of the x_j: nobody knows
those of others. So the mean of x over all clients moves by that of Q(z - x) where the mixing is doubly
stochastic (all have equally many neighbours, both ways). On the full graph all have one x, and this is
DFedAvg but for Q; on any other nothing pulls the x_k together again. Everybody starts from one w0, and trains
at once on the messages of the last round; the first ones say 0. Messages are changes: the last one of a
client that is absent is not added again, it counts as 0 in the mean (`presence.absent = "last_model"`).

Differs from the paper or the authors' code in:
- Q rounds to the nearest, so that it is off by s / 2 at most
- biases and norm parameters travel as float32; the paper's count has 2 byte for them too
- the authors' code rounds to float16 (`values = "fp16"`), and adds the mean to the trained model z_k
"""

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

import sparse_engine as se
from fl.algorithms.base import Bytes, Env, Inputs, Peers, Round, exchange, inputs, peer_sizes, together
from fl.algorithms.messages import Sent, send
from fl.clients.base import Clients
from fl.config import Messages, Positive, Section
from fl.train.local import Local
from fl.train.report import Done
from fl.train.trainer import Trainer

BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "q16": 2, "q8": 1}


class Config(Section):
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """of local training, fresh every round"""
    values: Literal["fp32", "bf16", "fp16", "q16", "q8"] = "q16"
    """Q: numbers in messages; messages.values goes before it where it is not fp32"""
    max_norm: Positive | None = 10.0
    """clip the norm of the gradient"""


@dataclass(frozen=True)
class Client:
    start: se.Model  # x
    sent: Sent  # the message of z - x

    @property
    def model(self) -> se.Model:
        """z, up to what its message lost."""
        return se.combine([self.start, self.sent.model], [1, 1])


class Given(NamedTuple):
    inputs: Inputs[Client]
    silent: int  # neighbours that are absent and count in the mean: nothing moved there


class Update(NamedTuple):
    client: Client
    model: se.Model  # z


def init(env: Env) -> Peers[Client]:
    first = Client(env.initial, send(se.zeros(env.initial), 0, 0, quantiser(env)))
    return Peers(env.alike(first))


def run_round(state: Peers[Client], t: int, env: Env) -> Round:
    neighbours = env.topology.neighbours(t)
    local = env.local(t, momentum=env.config.momentum, max_norm=env.config.max_norm)
    update = partial(local_update, t=t, local=local, messages=quantiser(env))
    live, silent = env.attendance.live(neighbours), env.attendance.stale(neighbours).degrees
    given = inputs(state.clients, live, env.attendance)
    done, reports = env.map(update, {k: Given(one, int(silent[k])) for k, one in given.items()})
    return Round(
        Peers(state.clients.with_({k: update.client for k, update in done.items()})),
        models=[done[k].model if k in done else state.clients[k].model for k in range(env.num_clients)],
        schedule=together(live),
        traffic=exchange(live, sizes(state.clients, env.config)),
        reports=reports,
    )


def local_update(
    trainer: Trainer, k: int, given: Given, *, t: int, local: Local, messages: Messages
) -> Done[Update]:
    """Mix, train, send."""
    own = given.inputs.client
    differences = [own.sent.model, *given.inputs.neighbours]
    share = 1 / (len(differences) + given.silent)
    start = se.combine([*differences, own.start], [*[share] * len(differences), 1])
    turn = trainer.turn(k, t, start)
    report = turn.train_and_test(local)
    model = turn.model()
    sent = send(se.combine([model, start], [1, -1]), k, t, messages, own.sent)
    return Done(Update(Client(start, sent), model), report)


def quantiser(env: Env) -> Messages:
    """Q: it remembers nothing of what it lost, unless it is that of `messages`."""
    if env.messages.values != "fp32":
        return env.messages
    return Messages(values=env.config.values, error_feedback=False)


def sizes(clients: Clients[Client], cfg: Config) -> Bytes:
    """Return the sizes of the messages; the paper counts every number as long as Q makes it."""
    found = peer_sizes(clients)
    found[:, 1] = found[:, 1] * BYTES[cfg.values] // 4
    return found
