"""DisPFL: sparse personal models of fixed density, which is DA-DPFL without waiting, votes and pruning (Dai,
Shen, He, Tian, Tao: ICML 2022, arXiv 2206.00187).

    w~  = (sum_j w_j) / (number of j whose mask has the entry), on m_k, over j in G_k and k itself
    w_k = E epochs of SGD on m_k from w~
    m_k = RigL of (w_k, m_k): drop the smallest |w|, grow as many

Everybody trains at once on the models of the last round. A message holds the values and their mask.

Differs from the paper or the authors' code in:
- masks grow where the gradient of cross-entropy on a fresh batch is largest, as published; the scripts of
  DA-DPFL's authors grow anywhere (`grow = "random"`)
- RigL's share falls over all rounds from `alpha0` = 0.3, as DA-DPFL's (the code's default: 0.5)

Beside waiting, votes and pruning, the two differ in clipping by default, as in the code of DA-DPFL's authors:
gradients are clipped at norm 10 here, and not at all there (`dispfl.max_norm`, `training.max_norm`).
"""

from dataclasses import dataclass
from functools import partial

import sparse_engine as se
from fl.algorithms import da_dpfl
from fl.algorithms.base import Env, Inputs, Peers, Round, Visiting, at_once
from fl.algorithms.messages import Sent, send
from fl.config import Messages, Positive
from fl.train.visit import Start, Visit, Visited


class Config(da_dpfl.Masks):
    max_norm: Positive | None = 10.0
    """clip the norm of the gradient"""


@dataclass(frozen=True)
class Client:
    model: se.Model  # trained, with the mask of its own
    mask: se.Bitmap  # m^{t+1}: the next aggregation is on it
    sent: Sent  # the message of that model


def init(env: Env) -> Peers[Client]:
    first = da_dpfl.init(env).clients
    return Peers(env.clients(Client(c.model, c.mask, c.sent) for c in first))


def run_round(state: Peers[Client], t: int, env: Env) -> Round:
    cfg: Config = env.config
    visit = Visit(
        local=env.local(t, max_norm=cfg.max_norm),
        move=cfg.move(t, env.num_rounds),
        message=env.messages.values == "fp32",
    )
    update = Visiting(t, visit, start, partial(finish, t=t, messages=env.messages))
    return at_once(state, env.topology.neighbours(t), update, env)


def start(given: Inputs[Client]) -> Start:
    """The mean is on the client's mask."""
    return Start(given.client.model, given.neighbours, given.client.mask)


def finish(k: int, given: Inputs[Client], done: Visited, *, t: int, messages: Messages) -> Client:
    """The client after its visit (aggregate, train, move the mask), with the message that it sends."""
    assert done.mask is not None
    sent = send(done.trained, k, t, messages, given.client.sent, nbytes=done.nbytes)
    return Client(done.trained, done.mask, sent)
