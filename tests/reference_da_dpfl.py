"""DA-DPFL as algorithms.md 1-4 states it, slowly: float64, dense tensors, bool masks, loops, full sorts.

It shares no code with `fl` and `sparse_engine`. Whatever is drawn at random comes in through `Given`; what
every client does in every round goes out as a `Turn`. Each choice by size or by rounding leaves a `Margin`:
how far, relative to the numbers compared, it was from another outcome. A float32 program may choose otherwise
only where its own error is larger than that.

    A model is {name: float64 tensor}, a mask {name: bool tensor}: names without a mask are not prunable.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

Weights = dict[str, Tensor]
Masks = dict[str, Tensor]
Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Settings:
    """The constants of algorithms.md 2-4."""

    num_rounds: int
    max_wait: int
    max_wait_schedule: str = "constant"
    wait_rule: str = "fastest"
    lr: float = 0.1
    lr_decay: float = 0.998
    weight_decay: float = 5e-4
    drift: str = "norm"
    delta_pr: float = 0.02
    delta_v: float = 0.5
    min_first_prune: int = 0
    b: float = 0.0
    c: float = 1.3
    target_sparsity: float = 0.8
    p: float = 0.5
    q: float = 1.0
    eta_c: float = 0.0
    gamma: float = 1.0
    beta: float = 0.9
    alpha0: float = 0.3
    prune_gaps: str = "ceil"
    send: str = "pruned"
    round_up: bool = False


class Given(Protocol):
    """What is drawn or measured, not computed. t: round, k: client."""

    net: nn.Module  # in float64, a function of weights
    initial: Weights  # w0
    masks: Sequence[Masks]  # m_k^0 of all k

    def neighbours(self, t: int) -> list[list[int]]: ...  # G_k^t of all k
    def reuse(self, t: int) -> list[int]: ...  # rho^t
    def duration(self, t: int, masks: Sequence[Masks]) -> list[float]: ...  # simulated, of turns on m_k^t
    def train_batches(self, t: int, k: int) -> list[Batch]: ...  # those of all epochs, in order
    def grow_batch(self, t: int, k: int) -> Batch: ...
    def test_set(self, k: int) -> Batch: ...


class Margin(NamedTuple):
    what: str
    name: str
    size: float


class Message(NamedTuple):
    weights: Weights
    support: Masks


@dataclass
class Turn:
    """Everything that one client does in one round."""

    waited_for: list[int]  # A*
    others: list[int]  # the other neighbours
    priors_left: int  # how many of those are prior: beyond N
    wave: int
    start: float
    finish: float
    mask: Masks = field(default_factory=dict)
    aggregated: Weights = field(default_factory=dict)
    trained: Weights = field(default_factory=dict)
    loss: float = 0.0
    accuracy_before: float = 0.0
    accuracy: float = 0.0
    drift: float = 0.0
    ratio: float | None = None
    vote: bool | None = None
    removed: dict[str, int] = field(default_factory=dict)
    capped: bool = False  # s* allowed less than PQI wanted
    pruned: Message = Message({}, {})
    sent: Message = Message({}, {})
    scores: Weights = field(default_factory=dict)  # dense gradients that growth goes by
    next_mask: Masks = field(default_factory=dict)
    margins: list[Margin] = field(default_factory=list)

    @property
    def num_removed(self) -> int:
        return sum(self.removed.values())


@dataclass
class Round:
    turns: list[Turn]
    max_wait: int
    pruning: bool
    t_star: int | None  # known after the round


def run(s: Settings, given: Given) -> list[Round]:
    """All rounds of Algorithm 1."""
    start = [masked(given.initial, m) for m in given.masks]  # w_k^init
    last = [Message(w, m) for w, m in zip(start, given.masks, strict=True)]
    masks = list(given.masks)
    rounds: list[Round] = []
    t_star: int | None = None
    for t in range(s.num_rounds):
        order, turns = plan(s, given, t, masks)
        pruning = t_star is not None and t in pruning_rounds(t_star, s)
        for k in order:  # whoever k waits for has a smaller reuse index
            turn = turns[k]
            turn.mask = masks[k]
            messages = [turns[j].sent for j in turn.waited_for] + [last[j] for j in [*turn.others, k]]
            turn.aggregated = aggregate(messages, turn.mask)
            train(turn, s, given, t, k)
            first, before = (rounds[0].turns[k].drift, rounds[-1].turns[k].drift) if rounds else (None, None)
            measure_drift(turn, start[k], first, before, s)
            prune(turn, s, pruning)
            turn.next_mask = rigl(turn, s, given, t, k)
        t_star = first_pruning_time(t_star, t, [turn.vote for turn in turns], s)
        rounds.append(Round(turns, max_wait_at(t, s), pruning, t_star))
        last = [turn.sent for turn in turns]
        masks = [turn.next_mask for turn in turns]
    return rounds


# 1. Setting


def masked(w: Weights, m: Masks) -> Weights:
    return {name: x * m[name] if name in m else x.clone() for name, x in w.items()}


def erk_counts(shapes: dict[str, tuple[int, ...]], density: float) -> dict[str, int]:
    """Stored entries of every weight at density D."""
    numel = {name: math.prod(shape) for name, shape in shapes.items()}
    raw = {name: sum(shape) / numel[name] for name, shape in shapes.items()}
    dense: set[str] = set()
    while True:
        free = [name for name in shapes if name not in dense]
        if not free:
            return numel
        wanted = density * sum(numel.values()) - sum(numel[name] for name in dense)
        eps = wanted / sum(raw[name] * numel[name] for name in free)
        largest = max(free, key=lambda name: raw[name])
        if eps * raw[largest] <= 1:
            break
        dense.add(largest)
    return {name: numel[name] if name in dense else int(eps * raw[name] * numel[name]) for name in shapes}


# 2.1, 2.2: who waits for whom


def plan(s: Settings, given: Given, t: int, masks: Sequence[Masks]) -> tuple[list[int], list[Turn]]:
    rho, duration, neighbours = given.reuse(t), given.duration(t, masks), given.neighbours(t)
    order = sorted(range(len(rho)), key=lambda k: rho[k])
    done: dict[int, Turn] = {}
    for k in order:
        prior = [j for j in neighbours[k] if rho[j] < rho[k]]
        if s.wait_rule == "fastest":
            prior.sort(key=lambda j: (done[j].finish, rho[j]))
        else:
            prior.sort(key=lambda j: rho[j])
        waited_for = prior[: max_wait_at(t, s)]
        others = [j for j in neighbours[k] if j not in waited_for]
        start = max((done[j].finish for j in waited_for), default=0.0)
        wave = max((done[j].wave + 1 for j in waited_for), default=0)
        done[k] = Turn(waited_for, others, len(prior) - len(waited_for), wave, start, start + duration[k])
    return order, [done[k] for k in range(len(rho))]


def max_wait_at(t: int, s: Settings) -> int:
    if s.max_wait_schedule == "constant":
        return s.max_wait
    steps = [n for n in range(s.max_wait, -1, -1) for _ in range(s.num_rounds // (s.max_wait + 1))]
    return steps[t] if t < len(steps) else 0


# 2.3: aggregation


def aggregate(messages: list[Message], own: Masks) -> Weights:
    result = {}
    for name in messages[0].weights:
        total = torch.stack([message.weights[name] for message in messages]).sum(0)
        if name in own:
            count = torch.stack([message.support[name] for message in messages]).sum(0)
            result[name] = torch.where(count > 0, total / count.clamp(min=1), 0.0) * own[name]
        else:
            result[name] = total / len(messages)
    return result


# 2.4, 2.10: local training, with a test before and after


def train(turn: Turn, s: Settings, given: Given, t: int, k: int) -> None:
    lr, w, losses = s.lr * s.lr_decay**t, dict(turn.aggregated), []
    turn.accuracy_before = accuracy(given.net, w, given.test_set(k))
    for x, y in given.train_batches(t, k):
        loss, gradient = loss_and_gradient(given.net, w, (x, y))
        gradient = masked(gradient, turn.mask)
        w = {name: w[name] - lr * (gradient[name] + s.weight_decay * w[name]) for name in w}
        losses += [loss] * len(y)
    turn.trained, turn.loss = w, sum(losses) / len(losses)
    turn.accuracy = accuracy(given.net, w, given.test_set(k))


def loss_and_gradient(net: nn.Module, w: Weights, batch: Batch) -> tuple[float, Weights]:
    leaves = {name: x.clone().requires_grad_() for name, x in w.items()}
    loss = F.cross_entropy(functional_call(net, leaves, (batch[0],)), batch[1])
    gradients = torch.autograd.grad(loss, list(leaves.values()))
    return loss.item(), dict(zip(leaves, gradients, strict=True))


def accuracy(net: nn.Module, w: Weights, test: Batch) -> float:
    with torch.no_grad():
        right = functional_call(net, w, (test[0],)).argmax(1) == test[1]
    return right.sum().item() / len(right)


# 2.5 - 2.7: drift, votes, pruning times


def measure_drift(turn: Turn, start: Weights, first: float | None, before: float | None, s: Settings) -> None:
    squares = [((turn.trained[name] - start[name]) ** 2).sum().item() for name in start]
    turn.drift = sum(squares) if s.drift == "squared" else sum(math.sqrt(x) for x in squares)
    if first is None or before is None:
        return
    turn.ratio = abs(turn.drift - before) / first
    turn.vote = turn.ratio < s.delta_pr
    turn.margins.append(Margin("vote", "", abs(turn.ratio - s.delta_pr) / s.delta_pr))


def first_pruning_time(t_star: int | None, t: int, votes: list[bool | None], s: Settings) -> int | None:
    if t_star is not None or t < s.min_first_prune or None in votes:
        return t_star
    return t if sum(map(bool, votes)) / len(votes) >= s.delta_v else None


def pruning_rounds(t_star: int, s: Settings) -> list[int]:
    """t_p + 1 < T."""
    rounds: list[int] = []
    if s.prune_gaps == "round":  # as the authors' code has it
        gaps = [t_star]
        for _ in range(20):
            gaps.append(round((gaps[-1] + s.b) / s.c))
        times = [sum(gaps[:p]) for p in range(1, 22)]
        return sorted({t_p + 1 for t_p in times if t_p + 1 < s.num_rounds})
    t_p, tau = 0, 1
    while True:
        t_p += math.ceil((t_star + s.b) / s.c ** (tau - 1))
        if t_p + 1 >= s.num_rounds:
            return rounds
        rounds.append(t_p + 1)
        tau += 1


# 2.8, 3: PQI pruning


def prune(turn: Turn, s: Settings, pruning: bool) -> None:
    """The trained weights, pruned where this is a round for it, and what is stored and sent."""
    total = sum(m.numel() for m in turn.mask.values())
    zeros = total - sum(int(m.sum()) for m in turn.mask.values())
    remove = dict.fromkeys(turn.mask, 0)
    if pruning and zeros / total < s.target_sparsity:
        wanted = {name: pqi_count(turn, name, s) for name in turn.mask}
        left = math.floor(s.target_sparsity * total) - zeros
        turn.capped = sum(wanted.values()) > left
        remove = share_out(wanted, left) if turn.capped else wanted
    support = {}
    for name, m in turn.mask.items():
        gone = choose(turn, "prune", name, -turn.trained[name].abs(), m, remove[name])
        support[name] = m & ~gone
    turn.removed = remove
    turn.pruned = Message(masked(turn.trained, support), support)
    turn.sent = turn.pruned if s.send == "pruned" else Message(turn.trained, turn.mask)


def pqi_count(turn: Turn, name: str, s: Settings) -> int:
    """c of one weight: how many of its stored entries go."""
    w = turn.trained[name][turn.mask[name]].abs()
    d = len(w)
    if d <= 1 or not w.any():
        return 0
    index = 1 - (w**s.p).mean().item() ** (1 / s.p) / (w**s.q).mean().item() ** (1 / s.q)
    r = d * (1 + s.eta_c) ** (-s.q / (s.q - s.p)) * (1 - index) ** (s.p * s.q / (s.q - s.p))
    if s.round_up:
        turn.margins.append(Margin("retained", name, min(r % 1, -r % 1) / d))
        return min(math.floor(min(s.gamma * (d - math.ceil(r)), s.beta * d)), d - 1)
    c = d * min(s.gamma * (1 - r / d), s.beta)
    turn.margins.append(Margin("count", name, min(c % 1, -c % 1) / d))
    return min(max(math.floor(c), 0), d - 1)


def share_out(wanted: dict[str, int], left: int) -> dict[str, int]:
    """The same share of what each weight would lose, `left` in all. The page does not say how to round: down,
    then up by one where most was lost."""
    total = sum(wanted.values())
    result = {name: c * left // total for name, c in wanted.items()}
    lost = sorted(wanted, key=lambda name: wanted[name] * left % total, reverse=True)
    for name in lost[: left - sum(result.values())]:
        result[name] += 1
    return result


# 2.9, 4: RigL


def rigl(turn: Turn, s: Settings, given: Given, t: int, k: int) -> Masks:
    alpha = s.alpha0 / 2 * (1 + math.cos(math.pi * t / s.num_rounds))
    w, support = turn.pruned
    _, gradient = loss_and_gradient(given.net, w, given.grow_batch(t, k))
    turn.scores = {name: gradient[name] for name in support}
    result = {}
    for name, m in support.items():
        n = math.ceil(alpha * int(m.sum()))
        kept = m & ~choose(turn, "drop", name, -w[name].abs(), m, n)
        result[name] = kept | choose(turn, "grow", name, turn.scores[name].abs(), ~kept, n)
    return result


def choose(turn: Turn, what: str, name: str, score: Tensor, among: Tensor, n: int) -> Tensor:
    """The n entries of largest score out of `among`; of equal ones the earlier."""
    candidates = among.flatten().nonzero().flatten().tolist()
    values = score.flatten().tolist()
    candidates.sort(key=lambda i: (-values[i], i))
    if 0 < n < len(candidates):
        inside, outside = (values[i] for i in candidates[n - 1 : n + 1])
        scale = max(abs(values[i]) for i in candidates)
        if (inside, outside) != (0, 0):  # zeros are equal in any precision
            turn.margins.append(Margin(what, name, (inside - outside) / scale))
    chosen = torch.zeros(among.numel(), dtype=torch.bool)
    chosen[candidates[:n]] = True
    return chosen.view(among.shape)
