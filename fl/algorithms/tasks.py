"""Everybody's inputs in a round, made when somebody asks for them, and models that go once they were read."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

import sparse_engine as se
from fl.algorithms.messages import Sent
from fl.clients.base import Clients, Ref
from fl.clients.stored import Stored
from fl.world.schedule import Schedule
from fl.world.topology import Neighbours

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
        return [other.get().sent.model for other in self.others]


class Tasks(Mapping[int, Inputs[P]]):
    """The inputs of the clients `who`: models of this round (`now`) from those they wait for, of the last one
    (`before`) from others, and from absent ones that `stale` names."""

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

    def __init__(self, schedule: Schedule, before: Clients[Any], spend: bool) -> None:
        self._before = before if spend and isinstance(before, Stored) else None
        self._near, self._old = schedule.neighbours, ~schedule.waited
        self._done: list[int] = []
        if self._before is not None:
            givers = self._near.indices[self._old]
            self._before.spend(1 + np.bincount(givers, minlength=len(before)))

    def done(self, k: int) -> None:
        """Client k's turn is over, and what came of it is kept."""
        self._done.append(k)
        if len(self._done) >= _BATCH:
            self.flush()

    def flush(self) -> None:
        """Count them now."""
        if self._before is not None and self._done:
            near, read = self._near, [np.array(self._done)]
            for k in self._done:
                part = slice(near.indptr[k], near.indptr[k + 1])
                read.append(near.indices[part][self._old[part]])
            self._before.read_by(np.concatenate(read))
        self._done.clear()
