"""DA-DPFL: sparse personal models that get sparser, with clients that wait for models of the same round
(Long, Wang, Anagnostopoulos, Bi: IEEE TNNLS 2025, arXiv 2404.15943, Algorithm 1).

Clients wait for a few neighbours that train before them in the round, aggregate on their own mask, train,
vote by how much their drift still moves, prune by PQ index once a majority has voted, and move their mask by
RigL.

Differs from the paper or the authors' code in:
- t* is the first round whose mean vote is at least delta_v (printed: "<", which fires at once)
- PQI's defaults are the code's (eta_c = 0, gamma = 1); those of the text are the preset `paper-text`
- the last pruning removes only what is left to the target sparsity (the code overshoots)
- growth scores are gradients of cross-entropy on a fresh batch, at the pruned weights (the code: nll of raw
  logits, at the weights before pruning)
- a client votes if its ratio is below delta_pr (the code: not above it)
- w_k^init, where drift starts, is w0 under the client's first mask, as in the code; the paper does not say
All other differences are fields of Config.
"""

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

import sparse_engine as se
from fl.algorithms import da_dpfl_shown, voting
from fl.algorithms.base import Env, Round, Visiting, gossip_sizes, models_of, peer_sizes
from fl.algorithms.messages import Sent, send
from fl.algorithms.tasks import Inputs, Readers, Tasks
from fl.clients.base import Clients
from fl.clients.columns import column, counts
from fl.config import Count, Messages, NotNegative, Positive, Section, Share, Whole, only_if, unless
from fl.train.report import Done, Report
from fl.train.trainer import Trainer
from fl.train.visit import Move, Prune, Start, Visit, Visited
from fl.world import schedule


class PQI(Section):
    """The fields of se.PQIConfig, which has their defaults and checks them."""

    p: float = se.PQIConfig.p
    """the PQ index compares the p-norm of the weights with their q-norm; p < q"""
    q: float = se.PQIConfig.q
    """see p"""
    eta_c: float = se.PQIConfig.eta_c
    """a larger one keeps fewer weights; 1 in the paper's text, 0 in the authors' code"""
    gamma: float = se.PQIConfig.gamma
    """scales the share that goes; 0.9 in the paper's text, 1 in the authors' code"""
    beta: float = se.PQIConfig.beta
    """bounds the share that goes"""
    round_up: bool = se.PQIConfig.round_up
    """retain a whole number of weights, rounded up, before gamma scales the rest (the authors' code)"""

    @property
    def config(self) -> se.PQIConfig:
        return se.PQIConfig(**dict(self))

    @model_validator(mode="after")
    def _checked(self) -> "PQI":
        _ = self.config  # ValueError: it cannot be
        return self


class Masks(Section):
    """First masks, and how RigL moves them."""

    density: Annotated[float, Field(gt=0, le=1)] = 0.5
    """share of the weights that the first masks keep"""
    distribution: Literal["erk", "uniform"] = "erk"
    """of that density over layers"""
    shared_initial_mask: bool = False
    """one first mask for all (the authors' scripts: true), or each client its own"""
    alpha0: Share = 0.3
    """share of the weights that RigL moves in round 0; falls to 0 as a cosine"""
    grow: Literal["gradient", "random"] = "gradient"
    """where RigL grows: at the largest gradients, or anywhere"""
    grow_from: Annotated[Literal["fresh", "last_batch"], only_if(grow="gradient")] = "fresh"
    """whose gradient decides: that of fresh batches after training and pruning, or that of the last batch of
    the training, which costs no pass of its own (as accurate on CIFAR-10: docs/algorithms.md, 4)"""
    grow_batches: Annotated[Count, only_if(grow="gradient"), only_if(grow_from="fresh")] = 1
    """fresh batches whose mean gradient decides (the authors' code: as many as an epoch has)"""

    def move(self, t: int, num_rounds: int) -> Move:
        """How masks move in round t."""
        return Move(
            fraction=se.rigl_fraction(t, num_rounds, self.alpha0),
            grow=self.grow,
            source=self.grow_from,
            batches=self.grow_batches,
        )

    @property
    def growth_cost(self) -> dict[str, Any]:
        """What growth takes, as `Costs.turn` is told."""
        if self.grow == "random":
            return {}
        return (
            {"by_last_batch": True} if self.grow_from == "last_batch" else {"grow_batches": self.grow_batches}
        )


class Config(Masks):
    reuse_index: Annotated[Literal["random", "id"], unless(max_wait=0)] = "random"
    """order of clients in a round: a fresh permutation, or their numbers (the authors' code)"""
    max_wait: Whole = 10
    """N: how many prior neighbours a client waits for, at most"""
    max_wait_schedule: Annotated[Literal["constant", "staircase"], unless(max_wait=0)] = "constant"
    """staircase: N, N-1, ..., 0 for equally many rounds each (the authors' code)"""
    wait_rule: Annotated[Literal["fastest", "index"], unless(max_wait=0)] = "fastest"
    """for which ones: those that finish first, or those of smallest reuse index (the authors' code)"""
    drift: Literal["norm", "squared"] = "norm"
    """Delta: norms summed over tensors (the authors' code), or one squared norm (as printed)"""
    delta_pr: Positive = 0.02
    """a client votes to prune once its drift moves by less than this share of its first drift"""
    delta_v: Annotated[float, Field(gt=0, le=1)] = 0.5
    """share of votes that starts pruning"""
    min_first_prune: Whole = 0
    """votes before this round do not start pruning"""
    b: NotNegative = 0.0
    """delays every pruning"""
    c: Annotated[float, Field(gt=1, allow_inf_nan=False)] = 1.3
    """the gaps between prunings shrink by this factor"""
    prune_gaps: Literal["ceil", "round"] = "ceil"
    """gaps between prunings: rounded up (paper), or each rounded from the last one (the authors' code)"""
    target_sparsity: Annotated[float, Field(ge=0, lt=1)] = 0.8
    """s*: no pruning passes it"""
    send: Literal["pruned", "unpruned"] = "pruned"
    """what is kept and sent after a pruning: what it left, or what it was done on (the authors' code)"""
    pqi: PQI = PQI()


@dataclass(frozen=True)
class Client:
    model: se.Model  # trained, then pruned, with the mask of its own (`send = "unpruned"`: only trained)
    mask: se.Bitmap  # m^{t+1}: the next aggregation is on it
    first_mask: se.Bitmap  # m^0
    sent: Sent  # the message of that model
    drift: float | None = None  # Delta of the last round
    first_drift: float | None = None


@dataclass(frozen=True)
class State:
    clients: Clients[Client]
    t_star: int | None = None


# Where models go with their last reader, clients train in so many windows by rho, of so many at least.
WINDOWS, WINDOW = 16, 32

KEYS, FIGURES, LEVELS = da_dpfl_shown.KEYS, da_dpfl_shown.FIGURES, da_dpfl_shown.LEVELS


def init(env: Env) -> State:
    owners = range(1 if env.config.shared_initial_mask else env.num_clients)
    make = partial(first_client, cfg=env.config, messages=env.messages)
    made = env.map(make, {k: env.initial for k in owners}).values
    return State(env.alike(made[0]) if len(made) == 1 else env.clients(made.values()))


def run_round(state: State, t: int, env: Env) -> Round:
    cfg: Config = env.config
    max_wait = schedule.max_wait_at(t, env.num_rounds, cfg.max_wait, cfg.max_wait_schedule)
    reuse = schedule.reuse_index(env.num_clients, cfg.reuse_index, env.rng("reuse", t))
    neighbours = env.topology.neighbours(t)
    old = Told.of(state.clients)
    sent = peer_sizes(state.clients)
    plan = env.clock(t).plan(
        env.attendance.live(neighbours),
        reuse,
        max_wait,
        flop=expected_flop(state, t, env),
        message_bytes=sent[:, 0],
        wait_rule=cfg.wait_rule,
    )
    prune = t in voting.prune_rounds(state.t_star, env.num_rounds, b=cfg.b, c=cfg.c, gaps=cfg.prune_gaps)
    target = Prune(config=cfg.pqi.config, target_density=1 - cfg.target_sparsity)
    visit = Visit(
        local=env.local(t),
        drift=cfg.drift,
        prune=target if prune else None,
        move=cfg.move(t, env.num_rounds),
        message=env.messages.values == "fp32",
    )
    update = local_update(t, visit, cfg, env.messages)

    clients, there, stale = state.clients, env.attendance, env.attendance.stale(neighbours)
    reports: dict[int, Report] = {}
    readers = Readers(there.present(env.num_clients), plan, clients, stale, spend=env.spend)
    for step in plan.steps(max(WINDOW, env.num_clients // WINDOWS) if env.spend else None):
        tasks = Tasks(there.of(step), plan, state.clients, clients, stale)
        clients, found = env.update(clients, update, tasks, readers.done)
        reports |= found
        readers.flush()

    new = Told.of(clients)
    drifts = [*zip(new.drift, old.drift, old.first, strict=True)]
    votes = [voting.vote(*each, cfg.delta_pr) if k in reports else None for k, each in enumerate(drifts)]
    t_star = voting.first_prune_round(
        state.t_star, t, votes, delta_v=cfg.delta_v, min_first_prune=cfg.min_first_prune
    )
    return Round(
        State(clients, t_star),
        models=models_of(clients),
        schedule=plan,
        traffic=gossip_sizes(plan, sent, peer_sizes(clients)),
        reports=reports,
        facts={"t_star": t_star, "max_wait": max_wait},
        columns={
            "drift": new.drift,
            "drift_ratio": [ratio(*each) for each in drifts],
            "vote": votes,
            "pruned": (new.stored < old.stored).tolist(),
        },
    )


class Told(NamedTuple):
    """Of every client: its last drift, its first one, and what its mask stores."""

    drift: list[Any]
    first: list[Any]
    stored: NDArray[np.int64]

    @classmethod
    def of(cls, clients: Clients[Client]) -> "Told":
        drift, first = (column(clients, name) for name in ("drift", "first_drift"))
        return cls(drift, first, counts(clients, "mask").sum(1))


def expected_flop(state: State, t: int, env: Env) -> list[int]:
    """Operations of every client in round t, growth included, on the mask that it holds when that begins."""
    local, growth = env.local(t), env.config.growth_cost
    flop: list[int] = env.costs.turns(counts(state.clients, "mask"), local, **growth).tolist()
    return flop


def local_update(t: int, visit: Visit, cfg: Config, messages: Messages) -> Visiting[Client]:
    """Lines 13 to 25 of Algorithm 1 for a client: aggregate, train, drift, prune, move the mask (the visit),
    send."""
    return Visiting(t, visit, start, partial(finish, t=t, cfg=cfg, messages=messages))


def start(given: Inputs[Client]) -> Start:
    """The mean of line 13 is on the client's mask; drift starts from w0 under its first one."""
    own = given.client
    return Start(own.model, given.neighbours, own.mask, own.first_mask)


def finish(
    k: int, given: Inputs[Client], done: Visited, *, t: int, cfg: Config, messages: Messages
) -> Client:
    """The client after its visit, with the message that it sends."""
    own = given.client
    assert done.mask is not None
    model = done.pruned if cfg.send == "pruned" else done.trained
    first_drift = done.drift if own.first_drift is None else own.first_drift
    sent = send(model, k, t, messages, own.sent, nbytes=done.nbytes)
    return Client(model, done.mask, own.first_mask, sent, done.drift, first_drift)


def first_client(
    trainer: Trainer, k: int, initial: se.Model, *, cfg: Masks, messages: Messages
) -> Done[Client]:
    """w0 under a mask of its own."""
    masks = se.erk_masks if cfg.distribution == "erk" else se.uniform_masks
    layout = initial.layout
    shapes = dict(zip(layout.names, layout.shapes, strict=True))
    mask = layout.bitmap_of(masks(shapes, cfg.density, seed=trainer.seed("first mask", k=k)))
    model = initial.with_pattern(mask)
    return Done(Client(model, mask, mask, send(model, k, 0, messages)), None)


def ratio(drift: float, previous: float | None, first: float | None) -> float | None:
    """|Delta_t - Delta_{t-1}| / Delta_first; None in the first round, and for a client that never moved."""
    if previous is None or not first:
        return None
    return abs(drift - previous) / first
