"""Clients that come and go: who is there in round t, and what that leaves of a round.

    rate        k is absent with probability `rate`, each round anew                    dropout
    sessions    k stays for `online` rounds and stays away for `offline` rounds, both in the mean, of
                geometric length: P(leaves) = 1 / online, P(comes back) = 1 / offline   churn
                round 0: there with probability online / (online + offline), as in all rounds after it
    trace       k is there where the file has it online at hour start_hour + t round_hours

All draws come from the stream (seed, "presence", t), one number per client. So who is there follows from the
configuration and t alone, and a resumed run sees the same clients.

An absent client does not train, send or receive. Between present ones a round is as it was (`live`). A
present client whose neighbour is absent takes the model that this one sent last (`absent = "last_model"`), or
leaves it out ("skip"). A last model is a copy that is at hand: it is not waited for, and nobody sends it, so
it has no bytes.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl import config
from fl.errors import ConfigError
from fl.rng import stream
from fl.world import trace
from fl.world.topology import Neighbours, from_links

Flags = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Attendance:
    """Who is there in a round; `there` None: everybody, in every round."""

    there: Flags | None = None
    absent: str = "last_model"

    def present(self, num_clients: int) -> NDArray[np.int64]:
        """Numbers of those that are there."""
        return np.arange(num_clients) if self.there is None else np.flatnonzero(self.there)

    def has(self, k: int) -> bool:
        return self.there is None or bool(self.there[k])

    def live(self, neighbours: Neighbours) -> Neighbours:
        """The links between two that are there: these carry messages."""
        return self._kept(neighbours, givers=True)

    def taken(self, neighbours: Neighbours) -> Neighbours:
        """The links over which those that are there take models, of whichever round."""
        return self._kept(neighbours, givers=self.absent == "skip")

    def stale(self, neighbours: Neighbours) -> Neighbours:
        """Those of `taken` whose giver is absent."""
        if self.there is None:
            nobody = np.empty(0, np.int64)
            return from_links(neighbours.num_clients, nobody, nobody)
        taken = self.taken(neighbours)
        return _chosen(taken, ~self.there[taken.indices])

    def of(self, clients: NDArray[np.int64]) -> NDArray[np.int64]:
        """Those of `clients` that are there, in their order."""
        return clients if self.there is None else clients[self.there[clients]]

    def _kept(self, neighbours: Neighbours, givers: bool) -> Neighbours:
        if self.there is None or self.there.all():
            return neighbours
        kept = self.there[neighbours.takers()]
        return _chosen(neighbours, kept & self.there[neighbours.indices] if givers else kept)


EVERYBODY = Attendance()


@dataclass
class Presence:
    """What `make` returns. `at(t)` depends on the configuration, the seed and t alone."""

    model: config.Presence
    num_clients: int
    seed: int
    online: trace.Online | None = None  # of kind "trace"
    _last: tuple[int, Flags | None] = field(
        default=(-1, None), repr=False
    )  # of kind "sessions": saves walking

    def at(self, t: int) -> Attendance:
        """Who is there in round t."""
        if self.model.kind == "always":
            return EVERYBODY
        return Attendance(self._there(t), self.model.absent)

    def _there(self, t: int) -> Flags:
        if self.online is not None:
            return self.online.at(self.model.start_hour + t * self.model.round_hours)
        if self.model.kind == "rate":
            return self._draw(t) >= self.model.rate
        return self._session(t)

    def _session(self, t: int) -> Flags:
        stay, away = self.model.online, self.model.offline
        at, there = self._last
        if there is None or at > t:
            at, there = 0, self._draw(0) < stay / (stay + away)
        for i in range(at + 1, t + 1):
            drawn = self._draw(i)
            there = np.where(there, drawn >= 1 / stay, drawn < 1 / away)
        self._last = t, there
        return there

    def _draw(self, t: int) -> NDArray[np.float64]:
        return stream(self.seed, "presence", t).random(self.num_clients)


def make(model: config.Presence, num_clients: int, seed: int) -> Presence:
    """The presence of a run. ConfigError: a trace that cannot be used."""
    if model.kind != "trace":
        return Presence(model, num_clients, seed)
    assert model.trace is not None  # the configuration saw to it
    found = trace.read(model.trace, num_clients)
    if found.online is None:
        raise ConfigError(f"presence.trace: expected a column hours_online in {model.trace}, got none")
    return Presence(model, num_clients, seed, found.online)


def _chosen(links: Neighbours, kept: NDArray[Any]) -> Neighbours:
    return from_links(links.num_clients, links.takers()[kept], links.indices[kept])
