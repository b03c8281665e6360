"""One wave of clients, handed out to the machines of a cluster in batches.

A machine has AHEAD batches at a time: while one is trained, the next one's models are fetched and copies of
the last one's are left. More are not sent before one of these is back, so what is under way is bounded, and a
machine that has nothing left to do takes clients of the one that has most.

When a worker or machine dies, its batches are done again, on the models that they began with: what work is
done on is its task alone, so that changes no bit of a result.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fl.errors import Expected, Stopped
from fl.run.cluster.connection import ClusterError
from fl.run.cluster.exchange import Lost
from fl.run.cluster.places import Place
from fl.train.work import Outcome

if TYPE_CHECKING:
    from fl.run.cluster.executor import Cluster

AHEAD = 3  # batches that a machine has at a time
PARTS = 4  # a batch is this part of what a machine has to do, and at least a client per thread
MOST = 256 << 20  # bytes of models that the clients of a batch begin with, about
_TRIES = 4  # times that a batch may end with its worker
_STOP_S = 60.0  # for which workers that were told to stop are waited for


@dataclass(eq=False)
class _Batch:
    """Clients that a worker has been sent; `tries`: how often one of them died with it."""

    place: Place
    clients: list[int]
    tries: int


class Wave:
    """One call of `Cluster.run`; `turn`: its number."""

    def __init__(
        self, of: "Cluster", turn: int, work: Any, tasks: Mapping[int, Any], finished: Callable[[int], None]
    ) -> None:
        self._of, self._turn, self._work, self._tasks, self._finished = of, turn, work, tasks, finished
        self._todo: dict[int, deque[int]] = {}
        self._calls: dict[Any, _Batch] = {}
        self._tries: dict[int, int] = {}
        self._hand_out(tasks)

    def run(self) -> Iterator[Outcome[Any]]:
        """Outcomes as batches come back. The first error is raised."""
        import ray

        self._send()
        while self._calls:
            (ready, *_), _ = ray.wait([*self._calls], num_returns=1)
            batch = self._calls.pop(ready)
            try:
                packed = ray.get(ready)
            except ray.exceptions.RayError as wrong:
                if not _died(wrong):
                    raise self._first_error(wrong) from None
                self._again(batch)
                continue
            self._send()  # before anything else: a worker should not wait for us
            for one in packed:
                outcome = self._of.unpacked(one)
                self._of.moved(outcome.k, batch.place.number)
                self._finished(outcome.k)
                yield outcome

    def stop(self) -> None:
        """Nobody wants what is still under way."""
        import ray

        if not self._calls:
            return
        for place in self._of.places.all:
            place.actor.stop.remote(self._turn)
        ready, _ = ray.wait([*self._calls], num_returns=len(self._calls), timeout=_STOP_S)
        for call in ready:
            with suppress(ray.exceptions.RayError):
                for one in ray.get(call):
                    self._of.unpacked(one)  # and forgotten
        self._calls.clear()

    def _first_error(self, wrong: Any) -> BaseException:
        """What went wrong: a batch may have been stopped because another of its machine failed."""
        import ray

        calls = [*self._calls]
        while isinstance(wrong.cause, Stopped) and calls:
            try:
                ray.get(calls.pop())
            except ray.exceptions.RayError as other:
                if not _died(other):
                    wrong = other
        if not isinstance(wrong.cause, Expected):
            wrong.cause.add_note(str(wrong))  # where it was raised, on that machine
        cause: BaseException = wrong.cause
        return cause

    def _hand_out(self, clients: Iterable[int]) -> None:
        """To the workers that have their models; those of nobody in equal shares."""
        places = self._of.places
        self._todo = {place.number: deque() for place in places.all}
        free = []
        for k in clients:
            home = self._of.home(k)
            if home in self._todo:
                self._todo[home].append(k)
            else:
                free.append(k)
        start, share = 0, 0
        for place in places.all:
            share += place.workers
            end = len(free) * share // places.total
            self._todo[place.number].extend(free[start:end])
            start = end

    def _send(self) -> None:
        """As many batches as machines may have."""
        for place in self._of.places.all:
            while sum(batch.place is place for batch in self._calls.values()) < AHEAD:
                clients = self._next(place)
                if not clients:
                    break
                self._call(_Batch(place, clients, max(self._tries.get(k, 0) for k in clients)))

    def _next(self, place: Place) -> list[int]:
        queue = self._todo[place.number]
        if not queue:
            return self._of_another(place)
        most = max(place.workers, MOST // max(1, self._of.bytes_of_client))
        count = min(max(place.workers, len(queue) // PARTS), most)
        return [queue.popleft() for _ in range(min(count, len(queue)))]

    def _of_another(self, place: Place) -> list[int]:
        """Clients of the one that has most to do, unless that is soon over."""
        if any(batch.place is place for batch in self._calls.values()):
            return []
        busiest = max(self._of.places.all, key=lambda other: len(self._todo[other.number]))
        queue = self._todo[busiest.number]
        if len(queue) <= busiest.workers:
            return []
        return [queue.pop() for _ in range(min(place.workers, len(queue) // 2))]

    def _call(self, batch: _Batch) -> None:
        given, put = self._of.packed((self._work, {k: self._tasks[k] for k in batch.clients}))
        keepers = self._of.places.keepers()
        self._calls[batch.place.actor.run.remote(self._turn, given, put, keepers)] = batch

    def _again(self, failed: _Batch) -> None:
        """Something died: what it had to do is done anew, when the cluster is whole again."""
        batches = [failed, *self._failed()]
        for batch in batches:
            for k in batch.clients:
                self._tries[k] = batch.tries + 1
            if batch.tries + 1 >= _TRIES:
                raise ClusterError(
                    f"expected clients {batch.clients[:8]} to be trained, got {_TRIES} workers that died "
                    f"meanwhile, the last on {batch.place.name}: out of memory? go on with --resume DIR"
                )
        left = [k for queue in self._todo.values() for k in queue]
        self._of.mend()
        self._hand_out([k for batch in batches for k in batch.clients] + left)
        self._send()

    def _failed(self) -> list[_Batch]:
        """Other batches that have failed for the same reason."""
        import ray

        found = []
        for call in [*self._calls]:
            if ray.wait([call], timeout=0, fetch_local=False)[0]:
                try:
                    ray.get(call)
                except ray.exceptions.RayError as wrong:
                    if _died(wrong):
                        found.append(self._calls.pop(call))
        return found


def _died(wrong: Any) -> bool:
    """Whether this error says that a worker, keeper or machine is gone, and not that work failed."""
    import ray

    return not isinstance(wrong, ray.exceptions.RayTaskError) or isinstance(wrong.cause, Lost)
