"""Everybody's inputs in a round, made when somebody asks for them, and models that go once they were read."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

import sparse_engine as se
from fl.algorithms.messages import Sent
from fl.clients.base import Clients, Ref
from fl.clients.columns import part
from fl.clients.stored import Stored
from fl.world.schedule import Schedule
from fl.world.topology import Neighbours, from_links

_BATCH = 64  # readers that are counted at once


class Peer(Protocol):
    """A client that keeps its model and its last message."""

    @property
    def model(self) -> se.Model: ...
    @property
    def sent(self) -> Sent: ...


P = TypeVar("P", bound=Peer)


class Inputs(NamedTuple, Generic[P]):
    """What a client's turn starts from: itself, and its neighbours in the order of their numbers.

    These are references, so that work reads them where it is done, and only then.
    """

    own: Ref[P]
    others: Sequence[Ref[P]]

    @property
    def client(self) -> P:
        """The client itself."""
        return self.own.get()

    @property
    def neighbours(self) -> list[se.Model]:
        """What its neighbours sent."""
        return [part(other, "sent.model") for other in self.others]


class Tasks(Mapping[int, Inputs[P]]):
    """The inputs of the clients `who`, each made when somebody asks for it: models of this round (`now`) from
    those they wait for, of the last one (`before`) from others, and from absent ones that `stale` names."""

    def __init__(
        self,
        who: NDArray[Any],
        schedule: Schedule,
        before: Clients[P],
        now: Clients[P] | None = None,
        stale: Neighbours | None = None,
    ) -> None:
        self._who, self._schedule = who, schedule
        self._stale = stale if stale is not None and len(stale.indices) else None
        self._before, self._now = before, before if now is None else now

    def __len__(self) -> int:
        return len(self._who)

    def __iter__(self) -> Iterator[int]:
        return iter(self._who.tolist())

    def __getitem__(self, k: int) -> Inputs[P]:
        near, waited = self._schedule.neighbours, self._schedule.waited
        begin, end = near.indptr[k], near.indptr[k + 1]
        pairs = [*zip(near.indices[begin:end].tolist(), waited[begin:end].tolist(), strict=True)]
        before, now = self._before, self._now
        if self._stale is not None:
            pairs = sorted([*pairs, *((j, False) for j in self._stale.of(k).tolist())])
        return Inputs(before.ref(k), [(now if new else before).ref(j) for j, new in pairs])


class Readers:
    """Counts who has read models of the last round, so that each goes with its last reader: this round's and
    the last one's are not both there in full. Of populations that can do so, others stay."""

    def __init__(
        self,
        who: NDArray[Any],
        schedule: Schedule,
        before: Clients[Any],
        stale: Neighbours | None = None,
        *,
        spend: bool,
    ) -> None:
        """Of a round in which `who` train; `schedule`, `before` and `stale`: as `Tasks` takes them."""
        self._before = before if spend and isinstance(before, Stored) else None
        self._done: list[int] = []
        if self._before is not None:
            near, old = schedule.neighbours, ~schedule.waited
            takers, givers = [who, near.takers()[old]], [who, near.indices[old]]
            if stale is not None:
                takers, givers = [*takers, stale.takers()], [*givers, stale.indices]
            self._reads = from_links(len(before), np.concatenate(takers), np.concatenate(givers))
            self._before.spend(self._reads.receivers)

    def done(self, k: int) -> None:
        """Client k's turn is over, and what came of it is kept."""
        if self._before is not None:
            self._done.append(k)
            if len(self._done) >= _BATCH:
                self._count(self._before)

    def flush(self) -> None:
        """Count all that are done: nobody is at work."""
        if self._before is not None and self._done:
            self._count(self._before)

    def _count(self, before: Stored[Any]) -> None:
        before.read_by(np.concatenate([self._reads.of(k) for k in self._done]))
        self._done.clear()
