"""Who waits for whom within a round: reuse index, waiting sets, start times, waves (algorithms.md 2.1, 2.2).

    rho     reuse index: a permutation of the clients
    A_k     prior neighbours {j in G_k : rho(j) < rho(k)}
    A*_k    the min(N, |A_k|) of A_k that finish first, ties by rho ("fastest"), or of smallest rho ("index")
    start   when the models of A*_k are there;   finish_k = start_k + duration_k

Members of A* give the model of this round, all other neighbours that of the last one. A client's link takes
one model at a time, `transfer` each: those of the last round from time 0 on, those of A* as they finish, so

    start_k = max(|G_k| transfer_k,  max_i (i-th finish in A*_k  +  (|A*_k| - i + 1) transfer_k))

Who is fastest is known once all priors have their finish, so clients are planned level by level of the graph
of priors, a whole level at once. A random graph of a million clients has about 40 levels. What is left when
levels become narrow (a ring in order of id has as many levels as clients) is planned one by one, by rho.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from fl.world.topology import Neighbours, from_links

Floats = NDArray[np.float64]
REUSE_RULES = ("random", "id")
WAIT_RULES = ("fastest", "index")
MAX_WAIT_RULES = ("constant", "staircase")
_NARROW = 32  # clients in a level: below it, arrays cost more than they save
_SHORT = 64  # priors of one client: the same


class Turn(NamedTuple):
    """One client's turn in a round: whose model of this round it takes, and whose of the last."""

    client: int
    wait_for: tuple[int, ...]
    others: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Schedule:
    """A planned round. `wait` holds A*_k, in the form of Neighbours; `wave` is one more than those of A*.
    `start` and `finish` are by the times that it was planned with."""

    neighbours: Neighbours
    reuse: NDArray[np.int32]
    wait: Neighbours
    start: Floats
    finish: Floats
    wave: NDArray[np.int32]

    @cached_property
    def depth(self) -> int:
        """The number of waves less one: a round lasts depth + 1 trainings."""
        return int(self.wave.max())

    @property
    def parallelism(self) -> float:
        """Return the share of clients that wait for nobody."""
        return float(np.mean(self.wait.degrees == 0))

    def steps(self, ranks: int | None = None) -> list[NDArray[np.int64]]:
        """Clients that train side by side, step by step: each needs earlier steps only. That is the waves;
        or, with `ranks`, those among the first so many clients by rho, then among the next so many. Who still
        takes a client's last model comes before it by rho, so that such models are soon not needed."""
        client = np.argsort(self.reuse)
        level = self.wave[client] if ranks is None else self._levels(ranks)
        window = np.arange(len(client)) // (ranks or len(client))
        order = np.lexsort((level, window))  # stable: by rho
        ends = np.flatnonzero(np.diff(level[order]) | np.diff(window[order])) + 1
        return np.split(client[order], ends)

    def _levels(self, ranks: int) -> NDArray[np.int32]:
        """Of every rank: the longest chain of waiting that ends there, within its window of so many ranks."""
        taker, giver = self.reuse[self.wait.takers()], self.reuse[self.wait.indices]
        inside = taker // ranks == giver // ranks
        taker, giver = taker[inside], giver[inside]
        level = np.zeros(len(self.reuse), np.int32)
        while True:
            longer = level.copy()
            np.maximum.at(longer, taker, level[giver] + 1)
            if np.array_equal(longer, level):
                return level
            level = longer

    @cached_property
    def waited(self) -> NDArray[np.bool_]:
        """Whether each entry of `neighbours.indices` is waited for."""
        return np.isin(_links(self.neighbours), _links(self.wait), assume_unique=True)

    def waves(self) -> list[list[Turn]]:
        """A turn needs turns of earlier waves only. Turns of a wave by rho, clients of a turn by number."""
        waves: list[list[Turn]] = [[] for _ in range(self.depth + 1)]
        for k in np.argsort(self.reuse).tolist():
            waves[self.wave[k]].append(self.turn(k))
        return waves

    def timed(self, duration: ArrayLike | None = None, transfer: ArrayLike | None = None) -> "Schedule":
        """Return this schedule by other times, as `plan` takes them: the same clients wait for the same ones.
        With the times that it was planned with, `start` and `finish` are the same bits."""
        prior, everybody = _priors(self.wait, self.reuse), self.wait.num_clients
        walk = _walked(prior, everybody, self.neighbours, self.reuse, duration, transfer)
        return replace(self, start=walk.start[self.reuse], finish=walk.finish[self.reuse])

    def turn(self, k: int) -> Turn:
        wait_for = self.wait.of(k).tolist()
        waiting = set(wait_for)
        return Turn(k, tuple(wait_for), tuple(j for j in self.neighbours.of(k).tolist() if j not in waiting))


def reuse_index(num_clients: int, rule: str, rng: np.random.Generator) -> NDArray[np.int32]:
    """rho of one round: "random", a fresh permutation, or "id", the client's own number."""
    if rule not in REUSE_RULES:
        raise ValueError(f"expected a reuse index out of {list(REUSE_RULES)}, got {rule!r}")
    rho = np.arange(num_clients, dtype=np.int32)
    return rng.permutation(rho) if rule == "random" else rho


def max_wait_at(t: int, num_rounds: int, max_wait: int, rule: str = "constant") -> int:
    """N in round t. "staircase": N, N-1, ..., 0 for floor(T/(N+1)) rounds each, 0 in the rest."""
    if rule not in MAX_WAIT_RULES:
        raise ValueError(f"expected a rule for max_wait out of {list(MAX_WAIT_RULES)}, got {rule!r}")
    if max_wait < 0 or not 0 <= t < num_rounds:
        given = f"max_wait={max_wait}, t={t}, num_rounds={num_rounds}"
        raise ValueError(f"expected max_wait >= 0 and a round t < num_rounds, got {given}")
    if rule == "constant":
        return max_wait
    step = num_rounds // (max_wait + 1)
    return max(0, max_wait - t // step) if step else 0


def plan(
    neighbours: Neighbours,
    reuse: NDArray[Any],
    max_wait: int,
    *,
    wait_rule: str = "fastest",
    duration: ArrayLike | None = None,
    transfer: ArrayLike | None = None,
) -> Schedule:
    """One round. `duration` of a client's training (default 1) and `transfer` of one model to it (default 0):
    one number, or one per client, in one unit of time."""
    num_clients = neighbours.num_clients
    reuse = _permutation(reuse, num_clients)
    if wait_rule not in WAIT_RULES:
        raise ValueError(f"expected a wait rule out of {list(WAIT_RULES)}, got {wait_rule!r}")
    if max_wait < 0:
        raise ValueError(f"expected max_wait >= 0, got {max_wait}")
    prior = _priors(neighbours, reuse)
    if wait_rule == "index" or max_wait == 0:
        prior = _first(prior, max_wait)
    walk = _walked(prior, max_wait, neighbours, reuse, duration, transfer)
    client = np.argsort(reuse)  # of a rank
    takers, givers = prior.takers()[walk.taken], prior.indices[walk.taken]
    return Schedule(
        neighbours=neighbours,
        reuse=reuse,
        wait=from_links(num_clients, client[takers], client[givers]),
        start=walk.start[reuse],
        finish=walk.finish[reuse],
        wave=walk.wave[reuse],
    )


def _permutation(reuse: NDArray[Any], num_clients: int) -> NDArray[np.int32]:
    reuse = np.asarray(reuse)
    if reuse.shape != (num_clients,) or not np.array_equal(np.sort(reuse), np.arange(num_clients)):
        raise ValueError(f"expected a permutation of 0..{num_clients - 1} as reuse index, got {reuse}")
    return reuse.astype(np.int32)


def _times(name: str, given: ArrayLike | None, default: float, num_clients: int) -> Floats:
    times = np.asarray(default if given is None else given, dtype=np.float64)
    if times.shape not in ((), (num_clients,)) or not np.isfinite(times).all() or (times < 0).any():
        raise ValueError(f"expected {name} >= 0, a number or {num_clients} of them, got {given!r}")
    return np.broadcast_to(times, (num_clients,))


def _priors(neighbours: Neighbours, reuse: NDArray[np.int32]) -> Neighbours:
    """A_k in ranks: row rho(k) holds rho(j) of its priors, ascending."""
    takers, givers = reuse[neighbours.takers()], reuse[neighbours.indices]
    prior = givers < takers
    return from_links(neighbours.num_clients, takers[prior], givers[prior])


def _first(prior: Neighbours, max_wait: int) -> Neighbours:
    """Return the first `max_wait` entries of every row."""
    counts = prior.degrees
    place = np.arange(len(prior.indices)) - np.repeat(prior.indptr[:-1], counts)
    indptr = np.concatenate([[0], np.cumsum(np.minimum(counts, max_wait))])
    return Neighbours(indptr, prior.indices[place < max_wait])


def _walked(
    prior: Neighbours,
    max_wait: int,
    neighbours: Neighbours,
    reuse: NDArray[np.int32],
    duration: ArrayLike | None,
    transfer: ArrayLike | None,
) -> "_Walk":
    """Start and finish of every rank: planning is done in ranks, so priors are smaller numbers."""
    num_clients, client = neighbours.num_clients, np.argsort(reuse)
    walk = _Walk(
        prior,
        max_wait,
        _times("duration", duration, 1.0, num_clients)[client],
        _times("transfer", transfer, 0.0, num_clients)[client],
        neighbours.degrees[client],
    )
    walk.run()
    return walk


class _Walk:
    """Start, finish and wave of every rank, and which entries of `prior` are waited for (`taken`)."""

    def __init__(
        self, prior: Neighbours, max_wait: int, duration: Floats, transfer: Floats, degree: NDArray[np.int64]
    ) -> None:
        self.prior, self.max_wait, self.duration, self.transfer = prior, max_wait, duration, transfer
        self.counts = prior.degrees
        self.start = degree * transfer
        self.finish = self.start + duration
        self.wave = np.zeros(prior.num_clients, np.int32)
        self.taken = np.zeros(len(prior.indices), bool)

    def run(self) -> None:
        pending = self.counts.copy()
        for ready in self._levels(pending):
            if len(ready) < _NARROW:
                pending[ready] = 1
                self._one_by_one(np.flatnonzero(pending))
                return
            self._at_once(ready)

    def _levels(self, pending: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
        """Ranks whose priors all lie in levels before; `pending` counts the priors that do not yet."""
        posterior = _transposed(self.prior)
        ready = np.flatnonzero(pending == 0)
        while True:
            reached = posterior.indices[_ranges(posterior.indptr, ready)]
            np.subtract.at(pending, reached, 1)
            ready = np.unique(reached[pending[reached] == 0])
            if not ready.size:
                return
            yield ready

    def _at_once(self, ranks: NDArray[np.int64]) -> None:
        entry, counts = _ranges(self.prior.indptr, ranks), self.counts[ranks]
        segment = np.repeat(np.arange(len(ranks)), counts)
        first = np.cumsum(counts) - counts
        finish = self.finish[self.prior.indices[entry]]
        order = np.lexsort((finish, segment))  # stable: priors lie in order of rho
        entry, finish = entry[order], finish[order]
        place = np.arange(len(entry)) - first[segment]
        taken = place < self.max_wait
        behind = np.minimum(counts, self.max_wait)[segment] - place
        there = np.where(taken, finish + behind * self.transfer[ranks][segment], 0.0)
        wave = np.where(taken, self.wave[self.prior.indices[entry]] + 1, 0)
        self.taken[entry[taken]] = True
        self.wave[ranks] = np.maximum.reduceat(wave, first)
        self.start[ranks] = np.maximum(self.start[ranks], np.maximum.reduceat(there, first))
        self.finish[ranks] = self.start[ranks] + self.duration[ranks]

    def _one_by_one(self, ranks: NDArray[np.int64]) -> None:
        """Plan the ranks that are left in plain Python, in order of rank."""
        indptr, indices = self.prior.indptr, self.prior.indices
        start, finish, wave, taken = self.start.data, self.finish.data, self.wave.data, self.taken.data
        for r in ranks.tolist():
            begin, end = int(indptr[r]), int(indptr[r + 1])
            if end - begin > _SHORT:
                self._at_once(np.array([r]))
                continue
            prior = indices[begin:end].tolist()
            fastest = sorted(range(len(prior)), key=lambda i: finish[prior[i]])[: self.max_wait]  # noqa: B023
            one_model = float(self.transfer[r])
            for place, i in enumerate(fastest):
                taken[begin + i] = True
                wave[r] = max(wave[r], wave[prior[i]] + 1)
                start[r] = max(start[r], finish[prior[i]] + (len(fastest) - place) * one_model)
            finish[r] = start[r] + float(self.duration[r])


def _links(rows: Neighbours) -> NDArray[np.int64]:
    """A number per link."""
    return rows.takers().astype(np.int64) * rows.num_clients + rows.indices


def _transposed(rows: Neighbours) -> Neighbours:
    shape = (rows.num_clients, rows.num_clients)
    ones = np.ones(len(rows.indices), np.int8)
    columns = sparse.csr_array((ones, rows.indices, rows.indptr), shape=shape).tocsc()
    return Neighbours(columns.indptr.astype(np.int64), columns.indices)


def _ranges(indptr: NDArray[np.int64], rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the entries of these rows, row after row."""
    counts = indptr[rows + 1] - indptr[rows]
    first = np.cumsum(counts) - counts
    return np.repeat(indptr[rows] - first, counts) + np.arange(counts.sum())
