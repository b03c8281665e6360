"""DFedSAM: sharpness-aware local training, then a mean over neighbours, one gossip step per round (Shi, Shen,
Wei, Sun, Yuan, Wang, Tao: ICML 2023, arXiv 2302.04083).

    x_k = mean of z_j over j in G_k and k itself
    z_k = E epochs of SGD with momentum from x_k, the gradient taken uphill of w:   g(w + rho g(w) / |g(w)|)

With rho = 0 this is DFedAvg. Models are dense and travel whole; everybody starts from one w0, and trains at
once on the models of the last round.

Differs from the paper or the authors' code in:
- the mean is plain; the paper has any doubly stochastic mixing, which this is where all have equally many
  neighbours, both ways (the authors' code weighs by samples)
- weight decay is that of the section `training`, 5e-4 by default (the authors' code leaves it out)
- the second gradient is clipped at `max_norm`, as everybody's (the authors' code: no clipping)
"""

from dataclasses import dataclass
from functools import partial
from typing import Annotated

from pydantic import Field

import sparse_engine as se
from fl.algorithms.base import Env, Inputs, Peers, Round, Visiting, at_once
from fl.algorithms.messages import Sent, send
from fl.config import Messages, NotNegative, Positive, Section
from fl.train.visit import Start, Visit, Visited


class Config(Section):
    rho: NotNegative = 0.01
    """how far uphill gradients are taken; chosen from .01 .02 .05 .1 .2 .5 (CIFAR .01, HAM10000 .2)"""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """of local training, fresh every round"""
    max_norm: Positive | None = 10.0
    """clip the norm of the gradient"""


@dataclass(frozen=True)
class Client:
    model: se.Model  # z, trained
    sent: Sent  # its message


def init(env: Env) -> Peers[Client]:
    first = Client(env.initial, send(env.initial, 0, 0, env.messages))
    return Peers(env.alike(first))


def run_round(state: Peers[Client], t: int, env: Env) -> Round:
    cfg: Config = env.config
    local = env.local(t, rho=cfg.rho, momentum=cfg.momentum, max_norm=cfg.max_norm)
    visit = Visit(local=local, message=env.messages.values == "fp32")
    update = Visiting(t, visit, start, partial(finish, t=t, messages=env.messages))
    return at_once(state, env.topology.neighbours(t), update, env)


def start(given: Inputs[Client]) -> Start:
    """Everybody stores everything: the mean is over all."""
    return Start(given.client.model, given.neighbours, given.client.model.bitmap)


def finish(k: int, given: Inputs[Client], done: Visited, *, t: int, messages: Messages) -> Client:
    """The client after its visit (mix, train), with the message that it sends."""
    sent = send(done.trained, k, t, messages, given.client.sent, nbytes=done.nbytes)
    return Client(done.trained, sent)
