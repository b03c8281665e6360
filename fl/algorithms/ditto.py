"""Ditto: FedAvg, and beside it a personal model per client that is pulled towards the global one (Li, Hu,
Beirami, Smith: ICML 2021, arXiv 2012.04221, Algorithm 1).

    the server sends w^t to a random set S_t of clients; for k in S_t
    w_k = E epochs of SGD from w^t
    v_k <- v_k - eta (grad F_k(v_k) + lambda (v_k - w^t))          E' epochs of steps
    w^{t+1} = sum_k n_k w_k / sum_k n_k

The pull is towards w^t, the global model that the client received this round, not towards its own w_k or the
mean that follows. Only w_k is sent; v_k stays with its client and is what is tested. A client that was not
sampled keeps its v_k, and with it the accuracy it had: `accuracy_personal` is the mean over all clients.

Differs from the paper or the authors' code in:
- 3 epochs for w and 2 for v (SPEC.md 6); the scripts of DA-DPFL's authors ran 2 and 3
- gradients are clipped before the pull is added, as in that code; the pull is of v before the step (there:
  after it)
- the two trainings of a round draw their batches from streams of their own
"""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import sparse_engine as se
from fl.algorithms import fedavg
from fl.algorithms.base import Env, Round, apart
from fl.algorithms.fedavg import Server
from fl.client import Pull, Worker
from fl.config import Messages, NotNegative, Whole
from fl.messages import send
from fl.metrics import mean


class Config(fedavg.Config):
    global_epochs: Whole = 3
    """E: epochs on the global model in a round (training.epochs is not used)"""
    personal_epochs: Whole = 2
    """E': epochs on the personal model"""
    pull: NotNegative = 0.5
    """lambda: how strongly personal models are drawn towards the global one; 0 is local training"""


@dataclass(frozen=True)
class State:
    server: Server
    personal: tuple[se.State, ...]  # v_k
    accuracy: tuple[float | None, ...]  # of v_k


class Inputs(NamedTuple):
    served: fedavg.Inputs
    personal: se.State


class Update(NamedTuple):
    upload: fedavg.Update  # w_k
    personal: se.State
    accuracy: float | None


def init(env: Env) -> State:
    personal = (env.initial,) * env.num_clients
    tested = env.map(fedavg.test, dict(enumerate(personal)))
    return State(fedavg.first(env.initial, env), personal, tuple(tested[k] for k in range(env.num_clients)))


def run_round(state: State, t: int, env: Env) -> Round:
    update = partial(local_update, t=t, cfg=env.config, messages=env.messages)
    served = fedavg.inputs(state.server, t, env)
    done = env.map(update, {k: Inputs(given, state.personal[k]) for k, given in served.items()})
    uploads = {k: update.upload for k, update in done.items()}
    model = fedavg.weighted_mean(uploads)
    personal = tuple(done[k].personal if k in done else v for k, v in enumerate(state.personal))
    accuracy = tuple(done[k].accuracy if k in done else a for k, a in enumerate(state.accuracy))
    return Round(
        State(fedavg.served(state.server, model, uploads, t, env), personal, accuracy),
        models=personal,
        schedule=apart(env, t),
        traffic=fedavg.traffic(state.server, uploads, env),
        facts={"sampled": len(done), "accuracy_personal": mean(accuracy)},
    )


def local_update(worker: Worker, k: int, given: Inputs, *, t: int, cfg: Config, messages: Messages) -> Update:
    """Both trainings of one client. Loss and accuracy are reported of the personal one, FLOP of both."""
    w, upload = given.served
    trained = worker.train(k, w, t, test=False, epochs=cfg.global_epochs, max_norm=cfg.max_norm)
    personal = worker.train(
        k,
        given.personal,
        t,
        pull=Pull(w, cfg.pull) if cfg.pull else None,
        part=" personal",
        epochs=cfg.personal_epochs,
        max_norm=cfg.max_norm,
    )
    sent = send(trained, k, t, messages, upload)
    return Update(fedavg.Update(trained, sent, worker.num_samples(k)), personal, worker.report.accuracy)
