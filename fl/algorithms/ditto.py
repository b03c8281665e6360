"""Ditto: FedAvg, and beside it a personal model per client that is pulled towards the global one (Li, Hu,
Beirami, Smith: ICML 2021, arXiv 2012.04221, Algorithm 1).

    the server sends w^t to a random set S_t of clients; for k in S_t
    w_k = E epochs of SGD from w^t
    v_k <- v_k - eta (grad F_k(v_k) + lambda (v_k - w^t))          E' epochs of steps
    w^{t+1} = sum_k n_k w_k / sum_k n_k

The pull is towards w^t, the global model that the client received this round, not towards its own w_k or the
mean that follows. Only w_k is sent; v_k stays with its client and is what is tested: `accuracy_mean` is over
the v_k of all clients. A client that was not sampled keeps its v_k, and with it the accuracy it had.
`accuracy_global` is that of w^{t+1} on all clients, `accuracy_sampled` that of the v_k of S_t alone.

Differs from the paper or the authors' code in:
- of `training.epochs` 3/5 are for w and 2/5 for v: together the work of the other algorithms, and the 3 and 2
  of algorithms.md 6 with 5 epochs. The scripts of DA-DPFL's authors ran 2 and 3
- gradients are clipped before the pull is added, as in that code; the pull is of v before the step (there:
  after it)
- the two trainings of a round draw their batches from streams of their own
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import sparse_engine as se
from fl import config
from fl.algorithms import fedavg
from fl.algorithms.base import Env, Round
from fl.algorithms.fedavg import Server
from fl.algorithms.messages import send
from fl.clients.base import Clients, Ref
from fl.config import Messages, NotNegative, Training, Whole
from fl.train.local import Local, Pull
from fl.train.report import Done
from fl.train.trainer import Trainer
from fl.train.work import Results


class Config(fedavg.Config):
    global_epochs: Whole | None = None
    """E: epochs on the global model; default: what personal_epochs leaves of training.epochs, at least 1"""
    personal_epochs: Whole | None = None
    """E': epochs on the personal model; default: 2/5 of training.epochs, or what global_epochs leaves"""
    pull: NotNegative = 0.5
    """lambda: how strongly personal models are drawn towards the global one; 0 is local training"""

    def epochs(self, work: int) -> tuple[int, int]:
        """E and E': together `work` where neither is given, and at least 1 each unless there is no work."""
        least, E, own = min(work, 1), self.global_epochs, self.personal_epochs
        if own is None:
            own = max(least, (4 * work + 5) // 10 if E is None else work - E)  # 2/5, rounded
        return (max(least, work - own) if E is None else E), own

    def unread(self) -> Mapping[str, str]:
        both = self.global_epochs is not None and self.personal_epochs is not None
        own = (
            {"training.epochs": "takes ditto.global_epochs and ditto.personal_epochs instead"} if both else {}
        )
        return {**super().unread(), **own}

    def settled(self, run: config.Config) -> "Config":
        E, own = self.epochs(run.training.epochs)
        return self.model_copy(update={"global_epochs": E, "personal_epochs": own})

    def trainings(self, given: Training) -> tuple[Training, ...]:
        (one,) = super().trainings(given)
        return tuple(one.model_copy(update={"epochs": epochs}) for epochs in self.epochs(given.epochs))


@dataclass(frozen=True)
class State:
    server: Server  # its `accuracy` is that of the v_k
    personal: Clients[se.Model]  # v_k


class Inputs(NamedTuple):
    served: fedavg.Inputs
    personal: Ref[se.Model]


class Update(NamedTuple):
    upload: fedavg.Update  # w_k, with the accuracy of v_k
    personal: se.Model


def init(env: Env) -> State:
    server = fedavg.first(env.initial, env)
    return State(replace(server, accuracy=env.clients(server.tested)), env.alike(env.initial))


def run_round(state: State, t: int, env: Env) -> Round:
    cfg: Config = env.config
    E, own = cfg.epochs(env.training.epochs)
    both = env.local(t, epochs=E, max_norm=cfg.max_norm), env.local(t, epochs=own, max_norm=cfg.max_norm)
    update = partial(local_update, t=t, both=both, pull=cfg.pull, messages=env.messages)
    served = fedavg.inputs(state.server, t, env)
    done, reports = env.map(update, {k: Inputs(given, state.personal.ref(k)) for k, given in served.items()})
    uploads = {k: update.upload for k, update in done.items()}
    personal = state.personal.with_({k: update.personal for k, update in done.items()})
    model = fedavg.weighted_mean(uploads) if uploads else state.server.model
    result = fedavg.ended(state.server, model, Results(uploads, reports), t, env)
    return replace(
        result,
        state=State(result.state, personal),
        models=personal,
        accuracy_before=[*state.server.accuracy],
    )


def client_models(state: State) -> Clients[se.Model]:
    """The personal ones."""
    return state.personal


def server_model(state: State) -> se.Model:
    return state.server.model


def local_update(
    trainer: Trainer,
    k: int,
    given: Inputs,
    *,
    t: int,
    both: tuple[Local, Local],
    pull: float,
    messages: Messages,
) -> Done[Update]:
    """`both` trainings of one client: of w, and of v, which is drawn towards w with strength `pull`.

    Loss and accuracy are reported of the personal one, FLOP of both.
    """
    w, upload = given.served
    turn = trainer.turn(k, t, w)
    first = turn.train(both[0])
    trained = turn.model()
    turn.load(given.personal.get())
    drawn = replace(both[1], pull=Pull(w, pull) if pull else None, stream=" personal")
    report = turn.train_and_test(drawn).plus(first)
    sent = send(trained, k, t, messages, upload.get())
    return Done(
        Update(fedavg.Update(trained, sent, trainer.num_samples(k), report.accuracy), turn.model()), report
    )
