"""BEER: gradient tracking with compressed gossip on a fixed undirected graph (Zhao, Li, Li, Richtarik, Chi:
NeurIPS 2022, arXiv 2201.13320, Algorithm 1).

    V <- V + gamma (W - I) G + g_t - g_{t-1}        G <- G + C(V - G)
    X <- X + gamma (W - I) H - eta V                H <- H + C(X - H)

X: models;  V: every client's estimate of the mean gradient (the mean of V is the mean of g_t, always);  H, G:
what others know of X and V;  W: Metropolis' weights 1 / (1 + max(degrees)), symmetric and doubly stochastic.
With C = identity this is gradient tracking with the mixing matrix I + gamma (W - I).

Where clients are absent, W is that of the graph between those that are there (`presence.absent = "skip"`),
and the sum of V - g over all clients stays what it was. With "last_model" G and H of absent ones are used,
which others know; these do not move in return, so that sum does. What an absent one misses it is assumed to
know when it is back.

Differs from the paper or the authors' code in:
- g_t is what the client's E epochs of SGD from X with rate eta moved it by, over eta: the sum of their
  gradients, so that a round holds as much local work as everybody's, and the model after local training is
  X - eta g_t. One step on all samples gives the paper's g_t = grad f(X): `gradient = "full"`. (The authors'
  code keeps the trained model in place of X and tracks the gradient of the last batch alone.)
- H starts at w0, which all know, and not at 0; G starts at C(g_0) where the paper has 0: its loop, begun at V
- a graph that changes has no W: where the topology is `random`, redrawn each round, BEER draws one regular
  graph for the whole run, with as many neighbours (one more where clients x neighbours is odd), as the
  authors ran it on a fixed graph with M. Any other graph is taken with its links both ways
- C is damped to a contraction as gsgd is; its noise is uniform, as published (the code: normal)
- eta falls as training.lr does; weight decay and clipping (at 10, each local step) as in the code
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import Annotated, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

import sparse_engine as se
from fl import config
from fl.algorithms.base import Env, Round, exchange, together
from fl.algorithms.compression import Compressed, Compression, compress
from fl.clients.base import Clients, Ref
from fl.clients.view import View
from fl.config import Messages, Positive, Section
from fl.keys import Key
from fl.train.local import Local
from fl.train.report import Done
from fl.train.trainer import Gradient, Trainer, Turn
from fl.world import topology
from fl.world.topology import Neighbours

KEYS = (Key("degree_mean", "neighbours of a client, mean over clients", null=True),)


class Config(Section):
    lr: Positive = 0.05
    """eta: of local steps and of the step along V; falls as training.lr does"""
    gamma: Annotated[float, Field(gt=0, le=1)] = 0.01
    """how far X and V move towards those of the neighbours in a round"""
    gradient: Literal["epochs", "full"] = "epochs"
    """g_t: summed over the epochs of local training, or of the mean loss at X (as published)"""
    max_norm: Positive | None = 10.0
    """clip the norm of the gradient"""
    compression: Compression = Compression()

    def trainings(self, given: config.Training) -> tuple[config.Training, ...]:
        (one,) = super().trainings(given)
        once = {"epochs": 1} if self.gradient == "full" else {}  # as much work as an epoch
        return (one.model_copy(update={"momentum": 0.0, **once}),)

    def unread(self) -> Mapping[str, str]:
        found = {
            "training.momentum": "trains without momentum",
            "messages.error_feedback": "keeps what a message lost in G and H",
        }
        if self.gradient == "full":
            found["training.epochs"] = "takes one gradient of all samples with beer.gradient = full"
        if self.compression.kind == "gsgd":
            found["messages.values"] = (
                "sends beer.compression.bits per number with beer.compression.kind = gsgd"
            )
        return found

    def fits(self, run: config.Config) -> None:
        if run.topology.redraw:
            raise ValueError(
                "topology.redraw: expected a fixed graph for beer, got true: "
                "set topology.redraw=false, or topology.kind to regular, ring or full without it"
            )


@dataclass(frozen=True)
class Client:
    X: se.Model
    V: se.Model
    G: se.Model
    H: se.Model
    g: se.Model  # g_{t-1}


@dataclass(frozen=True)
class State:
    clients: Clients[Client]


class Inputs(NamedTuple):
    """A client, its neighbours, and their weights in W."""

    own: Ref[Client]
    others: Sequence[Ref[Client]]
    weights: Sequence[float]


class Outputs(NamedTuple):
    client: Client
    messages: tuple[Compressed, Compressed]


def init(env: Env) -> State:
    w0, nothing = env.initial, se.zeros(env.initial)
    return State(env.alike(Client(w0, nothing, nothing, w0, nothing)))


def client_models(state: State) -> View[se.Model]:
    return View(state.clients, attrgetter("X"))


def run_round(state: State, t: int, env: Env) -> Round:
    links, there = graph(env.topology), env.attendance
    live, taken = there.live(links), there.taken(links)
    weights = metropolis(taken, (live if there.absent == "skip" else links).degrees)
    tasks = {k: inputs(k, state, taken, weights) for k in there.present(env.num_clients).tolist()}
    cfg: Config = env.config
    local = env.local(t, lr=cfg.lr, momentum=0.0, max_norm=cfg.max_norm)
    update = partial(local_update, t=t, local=local, cfg=cfg, messages=env.messages)
    done, reports = env.map(update, tasks)
    now = State(state.clients.with_({k: output.client for k, output in done.items()}))
    sizes = np.zeros((env.num_clients, 3), np.int64)
    for k, output in done.items():
        sizes[k] = np.sum([sent.sizes for sent in output.messages], axis=0)
    return Round(
        now,
        models=client_models(now),
        schedule=together(live),
        traffic=exchange(live, sizes),
        reports=reports,
        facts={"degree_mean": float(links.degrees.mean())},
    )


def inputs(k: int, state: State, links: Neighbours, weights: NDArray[np.float64]) -> Inputs:
    near = weights[links.indptr[k] : links.indptr[k + 1]]
    return Inputs(state.clients.ref(k), [state.clients.ref(j) for j in links.of(k)], near.tolist())


def local_update(
    trainer: Trainer, k: int, given: Inputs, *, t: int, local: Local, cfg: Config, messages: Messages
) -> Done[Outputs]:
    """The box above for one client. G and H of neighbours are the last round's, so nobody waits."""
    old, eta, near = given.own.get(), local.lr, [other.get() for other in given.others]

    def send(name: str, now: se.Model, known: se.Model) -> Compressed:
        noise = torch.Generator().manual_seed(trainer.seed(f"beer {name}", t, k))
        return compress(se.combine([now, known], [1, -1]), cfg.compression, messages, noise, k, t)

    turn = trainer.turn(k, t, old.X)
    g, report = epochs(turn, local) if cfg.gradient == "epochs" else full(turn, local)
    V = moved(old.V, old.G, [c.G for c in near], given.weights, cfg.gamma, [(g, 1.0), (old.g, -1.0)])
    X = moved(old.X, old.H, [c.H for c in near], given.weights, cfg.gamma, [(V, -eta)])
    of_v, of_x = send("V", V, old.G), send("X", X, old.H)
    G, H = se.combine([old.G, of_v.model], [1, 1]), se.combine([old.H, of_x.model], [1, 1])
    if cfg.gradient == "full":
        turn.load(X)
        report = replace(report, accuracy=turn.test())
    return Done(Outputs(Client(X, V, G, H, g), (of_v, of_x)), report)


def epochs(turn: Turn, local: Local) -> Gradient:
    """Return how far local training moved X, divided by eta."""
    X = turn.model()
    report = turn.train_and_test(local)
    return Gradient(se.combine([X, turn.model()], [1 / local.lr, -1 / local.lr]), report)


def full(turn: Turn, local: Local) -> Gradient:
    """Return the gradient of the mean loss at X."""
    X, before = turn.model(), turn.test()
    found, report = turn.gradient()
    g = se.combine([found, X], [1, local.weight_decay])
    norm = float((g.values.double().square().sum() + g.rest.double().square().sum()).sqrt())
    limit = math.inf if local.max_norm is None else local.max_norm
    clipped = se.combine([g], [limit / norm]) if norm > limit else g
    return Gradient(clipped, replace(report, accuracy_before=before))


def moved(
    own: se.Model,
    known: se.Model,
    near: Sequence[se.Model],
    weights: Sequence[float],
    gamma: float,
    more: Sequence[tuple[se.Model, float]],
) -> se.Model:
    """own + gamma sum_j w_j (near_j - known) + more"""
    states, factors = zip(*more, strict=True)
    mix = [gamma * w for w in weights]
    return se.combine([own, known, *near, *states], [1, -sum(mix), *mix, *factors])


def graph(links: topology.Topology) -> Neighbours:
    """The fixed undirected graph of a run."""
    if links.kind == "random" and links.redraw:
        degree = links.degree + links.num_clients * links.degree % 2
        return topology.make("regular", links.num_clients, degree=degree, seed=links.seed).neighbours(0)
    found = links.neighbours(0)
    ends = found.takers(), found.indices
    return topology.from_links(links.num_clients, np.concatenate(ends), np.concatenate(ends[::-1]))


def metropolis(links: Neighbours, degrees: NDArray[np.int64] | None = None) -> NDArray[np.float64]:
    """W's entry of every link, in the order of `links.indices`; what is missing to 1 is the client's own.
    `degrees`: those of the graph, where these links are a part of it."""
    degrees = links.degrees if degrees is None else degrees
    return 1 / (1.0 + np.maximum(degrees[links.takers()], degrees[links.indices]))
