"""`--executor ray`: an `executor.Pool` whose clients are trained by the machines of a Ray cluster.

The driver, the process of the run, sends batches of clients to the machines that have their models, and gets
outcomes with names in place of models (far.py): numbers, not weights. It fetches a model only where an
algorithm computes with it here (the means of FedAvg and its kin), or to write a checkpoint.

    a batch     a few clients of a wave: AHEAD of them per machine at a time, so memory is bounded, fetching
                and training overlap, and a machine that has nothing left to do takes clients of another
    a failure   of a worker or machine (places.py): its batches are done again, on the models they began with

Work depends on its task alone, so where and how often it is done changes no bit of a result.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from time import sleep
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary, finalize

import sparse_engine as se
from fl.config import code
from fl.errors import Expected, Stopped
from fl.run.cluster import connection, packing
from fl.run.cluster.connection import ClusterError
from fl.run.cluster.far import INITIAL, Far, FarBitmap, FarModel, Name, Near, make
from fl.run.cluster.node import Lost
from fl.run.cluster.packing import Told
from fl.run.cluster.places import NotStarted, Place, Places
from fl.run.events import Listener
from fl.train.setting import Setting
from fl.train.work import Outcome, Task, Value, Work

AHEAD = 3  # batches that a machine has at a time
_PARTS = 4  # a batch is this part of what a machine has to do, and at least a client per worker
_MOST = 256 << 20  # bytes of models that the clients of a batch begin with, about
_TRIES = 4  # times that a batch may end with its worker
_MENDINGS, _PAUSE_S = 10, 2.0  # tries to mend a cluster, and seconds between them
_STOP_S = 60.0  # for which workers that were told to stop are waited for


class Cluster:
    """A `Pool` of the machines at `address`; None: of this one. `workers`: clients at a time on each; None:
    one per core."""

    def __init__(
        self, setting: Setting, workers: int | None, listener: Listener, address: str | None = None
    ) -> None:
        connection.check(address)
        self._setting, self._listener = setting, listener
        self._layout = setting.initial.layout
        self._far: WeakValueDictionary[Name, Near] = WeakValueDictionary()
        self._dead: deque[Name] = deque()
        self._made: WeakKeyDictionary[Near, Name] = WeakKeyDictionary()
        self._made[setting.initial] = INITIAL
        self._put: dict[Name, Any] = {}  # of what was made here: where it lies in the object store
        self._serial, self._turn = 0, 0
        self._touched: list[Far] = []
        self._homes: dict[int, int] = {}  # client: worker that has its model
        self._workers = workers
        self._places: Places | None = None
        self._connected = connection.connect(address)

    def warm_up(self, clients: int) -> None:
        import ray
        from ray import cloudpickle

        for module in code.own_modules():  # machines have no such file
            cloudpickle.register_pickle_by_value(module)
        setting = ray.put(cloudpickle.dumps(replace(self._setting)))
        numerics = se.numerics() | {"path": str(self._setting.path)}
        self._places = Places(setting, numerics, self._workers, self._listener.note)
        self._places.start()
        count = len(self._places.all)
        ray.get([place.actor.warm_up.remote(-(-clients // count)) for place in self._places.all])

    def run(self, work: Work[Task, Value], tasks: Mapping[int, Task]) -> Iterator[Outcome[Value]]:
        """Outcomes as batches come back. The first error stops the others and is raised."""
        self._listener.wave_started(len(tasks))
        self._clean()
        self._turn += 1
        wave = _Wave(self, work, tasks)
        try:
            yield from wave.run()
        finally:
            wave.stop()

    def close(self) -> None:
        """What somebody still refers to is fetched first: results can be asked for models afterwards."""
        try:
            if self._places is not None:
                self._settle()
                self._places.close()
        except ClusterError as wrong:  # then there is the checkpoint
            self._listener.note(f"models stay behind: {wrong}")
        finally:
            self._disconnect()

    def _settle(self) -> None:
        if not self._places or not self._places.all:
            return
        for one in [*self._far.values()]:
            if isinstance(one, FarModel | FarBitmap):
                one.settle()

    def _disconnect(self) -> None:
        self._places = None
        if self._connected:
            connection.disconnect()
            self._connected = False

    def facts(self) -> list[dict[str, int]]:
        """What machines hold: of every worker and of its keeper."""
        import ray

        places = self.places
        keepers = places.keepers()
        calls = [(place.actor.facts.remote(), keepers[place.number].facts.remote()) for place in places.all]
        return [ray.get(own) | ray.get(kept) for own, kept in calls]

    @property
    def places(self) -> Places:
        assert self._places is not None, "warm_up comes first"
        return self._places

    def mend(self) -> None:
        """After something died."""
        import ray

        for _ in range(_MENDINGS):
            try:
                self.places.mend([*self._far])
                return
            except (ray.exceptions.RayError, Lost, NotStarted):  # another died, or it is not known yet
                sleep(_PAUSE_S)
        self.places.mend([*self._far])

    def packed(self, value: Any) -> tuple[bytes, dict[Name, Any]]:
        """`value` for a worker, and where in the object store lies what was made here."""
        used: dict[Name, Any] = {}
        return packing.pack(value, lambda one: self._named(one, used)), used

    def unpacked(self, data: bytes) -> Any:
        return packing.unpack(data, self._found)

    def home(self, k: int) -> int | None:
        """The worker that has client k's model; None: nobody has."""
        found = self._homes.get(k)
        return None if found is None else self.places.owner(found)

    def moved(self, k: int, number: int) -> None:
        self._homes[k] = number

    def _named(self, one: Near, used: dict[Name, Any]) -> Name:
        """The name of something that was made here, and is in the object store from now on."""
        import ray

        if one not in self._made:
            self._serial += 1
            name = Name(0, self._serial)
            self._made[one], self._far[name] = name, one
            self._put[name] = ray.put(packing.encoded(one, name))
            finalize(one, self._dead.append, name).atexit = False
        name = self._made[one]
        if name != INITIAL:
            used[name] = self._put[name]
        return name

    def _found(self, told: Told) -> Near:
        if told.name == INITIAL:
            one: Near = self._setting.initial
        elif told.name in self._far:
            one = self._far[told.name]
        else:
            kind = "mask" if told.kind == "mask" else "model"
            one = make(kind, told.name, told.stored, self._layout, self._fetched)
            self._far[told.name] = one
            finalize(one, self._dead.append, told.name).atexit = False
        if told.kind == "mask of model":
            assert isinstance(one, se.Model)
            return one.bitmap
        return one

    def _fetched(self, name: Name) -> Near:
        import ray

        while True:
            keeper = self.places.keepers()[name.maker]
            try:
                (blob,) = ray.get(keeper.give.remote([tuple(name)]))
                break
            except ray.exceptions.RayError:
                self.mend()
        assert blob is not None, f"{name} is at no keeper"
        far = self._far[name]
        assert isinstance(far, FarModel | FarBitmap)
        self._touched.append(far)
        return packing.decoded(blob, self._layout)

    def _clean(self) -> None:
        """Let go of what was fetched, and of what nobody refers to any more."""
        for far in self._touched:
            far.drop()
        self._touched.clear()
        names = [self._dead.popleft() for _ in range(len(self._dead))]
        for name in names:
            self._put.pop(name, None)
        self.places.forget(names)


class _Batch:
    """Clients that a worker has been sent; `tries`: how often one of them died with it."""

    def __init__(self, place: Place, clients: list[int], tries: int) -> None:
        self.place, self.clients, self.tries = place, clients, tries


class _Wave:
    """One call of `Cluster.run`."""

    def __init__(self, of: Cluster, work: Any, tasks: Mapping[int, Any]) -> None:
        self._of, self._work, self._tasks = of, work, tasks
        self._todo: dict[int, deque[int]] = {}
        self._calls: dict[Any, _Batch] = {}
        self._tries: dict[int, int] = {}
        self._hand_out(tasks)

    def run(self) -> Iterator[Outcome[Any]]:
        import ray

        self._send()
        while self._calls:
            (ready, *_), _ = ray.wait([*self._calls], num_returns=1)
            batch = self._calls.pop(ready)
            try:
                packed = ray.get(ready)
            except ray.exceptions.RayTaskError as wrong:
                if not isinstance(wrong.cause, Lost):
                    raise self._first_error(wrong) from None
                self._again(batch)
                continue
            except ray.exceptions.RayError:
                self._again(batch)
                continue
            self._send()  # before anything else: a worker should not wait for us
            for one in packed:
                outcome = self._of.unpacked(one)
                self._of.moved(outcome.k, batch.place.number)
                self._of._listener.client_finished(outcome.k)
                yield outcome

    def _first_error(self, wrong: Any) -> BaseException:
        """What went wrong: a batch may have been stopped because another of its machine failed."""
        import ray

        calls = [*self._calls]
        while isinstance(wrong.cause, Stopped) and calls:
            try:
                ray.get(calls.pop())
            except ray.exceptions.RayTaskError as other:
                if not isinstance(other.cause, Lost):
                    wrong = other
            except ray.exceptions.RayError:
                pass
        if not isinstance(wrong.cause, Expected):
            wrong.cause.add_note(str(wrong))  # where it was raised, on that machine
        return wrong.cause

    def stop(self) -> None:
        """Nobody wants what is still under way."""
        import ray

        if not self._calls:
            return
        for place in self._of.places.all:
            place.actor.stop.remote(self._of._turn)
        ready, _ = ray.wait([*self._calls], num_returns=len(self._calls), timeout=_STOP_S)
        for call in ready:
            with suppress(ray.exceptions.RayError):
                for one in ray.get(call):
                    self._of.unpacked(one)  # and forgotten
        self._calls.clear()

    def _hand_out(self, clients: Iterable[int]) -> None:
        """To the workers that have their models; those of nobody in equal shares."""
        places = self._of.places.all
        self._todo = {place.number: deque() for place in places}
        free = []
        for k in clients:
            home = self._of.home(k)
            if home in self._todo:
                self._todo[home].append(k)
            else:
                free.append(k)
        start, total, share = 0, self._of.places.total, 0
        for place in places:
            share += place.workers
            end = len(free) * share // total
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
        if not queue:  # help the one that has most to do, unless that is soon over
            busy = any(batch.place is place for batch in self._calls.values())
            most = max(self._todo, key=lambda number: len(self._todo[number]))
            others = self._todo[most]
            if busy or len(others) <= next(p for p in self._of.places.all if p.number == most).workers:
                return []
            return [others.pop() for _ in range(min(place.workers, len(others) // 2))]
        size = max(1, 4 * self._of._layout.segments.numel)
        count = min(max(place.workers, len(queue) // _PARTS), max(place.workers, _MOST // size))
        return [queue.popleft() for _ in range(min(count, len(queue)))]

    def _call(self, batch: _Batch) -> None:
        given, put = self._of.packed((self._work, {k: self._tasks[k] for k in batch.clients}))
        keepers = self._of.places.keepers()
        self._calls[batch.place.actor.run.remote(self._of._turn, given, put, keepers)] = batch

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
        """Other batches that have failed for the same reason, or are about to."""
        import ray

        found = []
        for call in [*self._calls]:
            ready, _ = ray.wait([call], timeout=0, fetch_local=False)
            if not ready:
                continue
            try:
                ray.get(call)
            except ray.exceptions.RayTaskError as wrong:
                if not isinstance(wrong.cause, Lost):
                    continue
            except ray.exceptions.RayError:
                pass
            else:
                continue
            found.append(self._calls.pop(call))
        return found
