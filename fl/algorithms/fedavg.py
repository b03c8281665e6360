"""FedAvg: a server averages the models of sampled clients (McMahan, Moore, Ramage, Hampson, Aguera y Arcas:
AISTATS 2017, arXiv 1602.05629, Algorithm 1).

    the server sends w^t to a random set S_t of clients
    w_k = E epochs of SGD from w^t                       for k in S_t
    w^{t+1} = sum_k n_k w_k / sum_k n_k                  n_k training samples

Accuracies are over all clients, each on its own test samples:

    accuracy_mean       the model that each client would use: the w_k that it trained last, however long ago;
                        w^{t+1} for a client that was never sampled
    accuracy_before     w^t, from which everybody would start
    accuracy_global     w^{t+1}: what the paper's tables have
    accuracy_sampled    w_k of the clients in S_t alone, so a figure that depends on the draw

The accuracy of a client's last w_k does not change until it trains again. So the state keeps that number for
every client, and not the models.

Differs from the paper or the authors' code in:
- gradients are clipped, as in the code of DA-DPFL's authors
- in `Round.models` a client that was not sampled has the new global model, which it would be served
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import sparse_engine as se
from fl import config
from fl.algorithms.base import Env, Round, Traffic, apart, mean, server
from fl.algorithms.messages import Sent, send
from fl.clients.base import Clients, Ref
from fl.clients.memory import InMemory
from fl.config import Count, Messages, Positive, Section
from fl.train.local import Local
from fl.train.report import Done
from fl.train.trainer import Trainer
from fl.train.work import Results


class Config(Section):
    clients_per_round: Count | None = None
    """clients sampled per round; default: topology.degree (random, regular), else 10, or all if fewer"""
    max_norm: Positive | None = 10.0
    """clip the norm of the gradient"""

    def unread(self) -> Mapping[str, str]:
        why = "has a server and no neighbours"
        found = {"topology.redraw": why, "topology.edges": why}
        if self.clients_per_round is not None:  # or else the server samples as many as there are neighbours
            found |= {"topology.kind": why, "topology.degree": why}
        return found

    def fits(self, run: config.Config) -> None:
        if run.run.eval_every > 1:
            raise ValueError(
                "run.eval_every: expected 1 with an algorithm with a server, which keeps what is tested, "
                f"got {run.run.eval_every}; run.eval_clients tests fewer"
            )
        if self.clients_per_round is not None and self.clients_per_round > run.num_clients:
            raise ValueError(
                f"clients_per_round: expected at most num_clients = {run.num_clients}, "
                f"got {self.clients_per_round}"
            )


@dataclass(frozen=True)
class Server:
    """What the server keeps, and what clients keep of their messages."""

    model: se.Model  # w^t
    sent: Sent  # its message
    uploads: Clients[Sent | None]  # the clients' last messages, where these lost something
    tested: tuple[float | None, ...]  # accuracy of w^t on every client's test samples
    accuracy: Clients[float | None]  # of the w_k that every client trained last; None: it never did


class Inputs(NamedTuple):
    model: se.Model  # w^t as it arrived
    upload: Ref[Sent | None]  # the client's last message


class Update(NamedTuple):
    model: se.Model  # w_k
    sent: Sent
    samples: int  # n_k
    accuracy: float | None  # of w_k


def init(env: Env) -> Server:
    return first(env.initial, env)


def run_round(state: Server, t: int, env: Env) -> Round:
    local = env.local(t, max_norm=env.config.max_norm)
    done = env.map(partial(local_update, t=t, local=local, messages=env.messages), inputs(state, t, env))
    return ended(state, weighted_mean(done.values) if done.values else state.model, done, t, env)


def client_models(state: Server) -> tuple[se.Model, ...]:
    """The server's model for each client: it keeps none of its own."""
    return (state.model,) * len(state.tested)


def server_model(state: Server) -> se.Model:
    return state.model


def local_update(
    trainer: Trainer, k: int, given: Inputs, *, t: int, local: Local, messages: Messages
) -> Done[Update]:
    """Train, send."""
    turn = trainer.turn(k, t, given.model)
    report = turn.train_and_test(local)
    trained = turn.model()
    sent = send(trained, k, t, messages, given.upload.get())
    return Done(Update(trained, sent, trainer.num_samples(k), report.accuracy), report)


def first(model: se.Model, env: Env) -> Server:
    """Before round 0."""
    sent = send(model, env.num_clients, 0, env.messages)
    return Server(model, sent, uploads=env.alike(None), tested=tested(model, env), accuracy=env.alike(None))


def inputs(state: Server, t: int, env: Env) -> dict[int, Inputs]:
    """What the clients of S_t start from, by number: drawn among those that are there."""
    size = env.config.clients_per_round or _as_many_as_neighbours(env)
    present = env.attendance.present(env.num_clients)
    clients = env.rng("clients", t).choice(present, min(size, len(present)), replace=False)
    return {k: Inputs(state.sent.model, state.uploads.ref(k)) for k in sorted(clients.tolist())}


def _as_many_as_neighbours(env: Env) -> int:
    """So that a server takes as many models per round as a client of the other algorithms does: in the paper
    both are 10. A topology without a degree of its own says nothing."""
    graph = env.topology
    return graph.degree if graph.kind in ("random", "regular") else min(10, env.num_clients)


def weighted_mean(done: Mapping[int, Update]) -> se.Model:
    """w^{t+1}, of the models as they reach the server."""
    total = sum(update.samples for update in done.values())
    models = [update.sent.model for update in done.values()]
    return se.combine(models, [update.samples / total for update in done.values()])


def served(state: Server, model: se.Model, done: Mapping[int, Update], t: int, env: Env) -> Server:
    """The server with its new model, and a message of it. The server is the node after the last client."""
    sent = send(model, env.num_clients, t + 1, env.messages, state.sent)
    lossy = {k: update.sent if update.sent.lost is not None else None for k, update in done.items()}
    accuracy = {k: update.accuracy for k, update in done.items()}
    return Server(
        model,
        sent,
        uploads=state.uploads.with_(lossy),
        tested=tested(model, env),
        accuracy=state.accuracy.with_(accuracy),
    )


def traffic(state: Server, done: Mapping[int, Update], env: Env) -> Traffic:
    return server(env.num_clients, [*done], state.sent, [update.sent for update in done.values()])


def ended(state: Server, model: se.Model, results: Results[Update], t: int, env: Env) -> Round:
    """The round after which the server has `model`."""
    done, reports = results
    now = served(state, model, done, t, env) if done else state  # nobody was there: nothing moved
    present = env.attendance.present(env.num_clients).tolist()
    return Round(
        now,
        models=InMemory([model] * env.num_clients).with_({k: update.model for k, update in done.items()}),
        schedule=apart(env.num_clients),
        traffic=traffic(state, done, env),
        reports=reports,
        accuracy=[own if own is not None else new for own, new in zip(now.accuracy, now.tested, strict=True)],
        accuracy_before=state.tested,
        facts={
            "sampled": len(done),
            "accuracy_sampled": mean(update.accuracy for update in done.values()),
            "accuracy_global": mean(now.tested[k] for k in present),
        },
    )


def tested(model: se.Model, env: Env) -> tuple[float | None, ...]:
    """Accuracy of `model` on every client's test samples."""
    return tuple(env.map(test, dict.fromkeys(range(env.num_clients), model)).values.values())


def test(trainer: Trainer, k: int, model: se.Model) -> Done[float | None]:
    """Nothing to report: nobody trained."""
    return Done(trainer.turn(k, 0, model).test(), None)
