"""`--executor ray`: an `executor.Pool` whose clients are trained by the machines of a Ray cluster.

The driver, the process of the run, sends batches of clients (wave.py) to the machines that have their models,
and gets outcomes with names in place of models (far.py): numbers, not weights. It fetches a model only where
an algorithm computes with it here (the means of FedAvg and its kin), or to write a checkpoint. What dies is
replaced by places.py.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from time import sleep
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary, finalize

import sparse_engine as se
from fl.config import code
from fl.run.cluster import connection, packing
from fl.run.cluster.connection import ClusterError
from fl.run.cluster.exchange import Lost, taken
from fl.run.cluster.far import INITIAL, Far, FarBitmap, FarModel, Name, Near, make
from fl.run.cluster.packing import Told
from fl.run.cluster.places import NotStarted, Places
from fl.run.cluster.wave import Wave
from fl.run.events import Listener
from fl.train.setting import Setting
from fl.train.work import Outcome, Task, Value, Work

SEEN = 2 << 30  # bytes of others' models that a machine keeps
_MENDINGS, _PAUSE_S = 20, 1.0  # tries to mend a cluster, and seconds between them


class Cluster:
    """A `Pool` of the machines at `address`; None: of this one. `workers`: clients at a time on each; None:
    one per CPU that Ray knows there."""

    def __init__(
        self, setting: Setting, workers: int | None, listener: Listener, address: str | None = None
    ) -> None:
        connection.check(address)
        self._setting, self._listener, self._workers = setting, listener, workers
        self._layout = setting.initial.layout
        self._far: WeakValueDictionary[Name, Near] = WeakValueDictionary()
        self._dead: deque[Name] = deque()
        self._made: WeakKeyDictionary[Near, Name] = WeakKeyDictionary()
        self._made[setting.initial] = INITIAL
        self._put: dict[Name, Any] = {}  # of what was made here: where it lies in the object store
        self._serial, self._turn = 0, 0
        self._touched: list[Far] = []
        self._homes: dict[int, int] = {}  # client: worker that has its model
        self._places: Places | None = None
        self._connected = connection.connect(address)

    def warm_up(self, clients: int) -> None:
        """Start a worker per machine, with data and network."""
        import ray
        from ray import cloudpickle

        for module in code.own_modules():  # machines have no such file
            cloudpickle.register_pickle_by_value(module)
        setting = ray.put(cloudpickle.dumps(self._setting))
        numerics = se.numerics() | {"path": str(self._setting.path)}
        self._places = Places(setting, numerics, self._workers, SEEN, self._listener.note)
        self._places.start()
        count = len(self._places.all)
        ray.get([place.actor.warm_up.remote(-(-clients // count)) for place in self._places.all])

    def run(self, work: Work[Task, Value], tasks: Mapping[int, Task]) -> Iterator[Outcome[Value]]:
        """Outcomes as batches come back. The first error stops the others and is raised."""
        self._listener.wave_started(len(tasks))
        self._clean()
        self._turn += 1
        wave = Wave(self, self._turn, work, tasks, self._listener.client_finished)
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
            self._places = None
            if self._connected:
                connection.disconnect()
                self._connected = False

    def facts(self) -> list[dict[str, int]]:
        """What machines hold: of every worker and of its keeper."""
        import ray

        keepers = self.places.keepers()
        calls = [
            (place.actor.facts.remote(), keepers[place.number].facts.remote()) for place in self.places.all
        ]
        return [ray.get(kept) | ray.get(own) for own, kept in calls]

    @property
    def places(self) -> Places:
        assert self._places is not None, "warm_up comes first"
        return self._places

    @property
    def bytes_of_client(self) -> int:
        """Of a dense model, the most that a client's can be."""
        return 4 * self._layout.segments.numel

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
        """Client k was trained by that worker."""
        self._homes[k] = number

    def _named(self, one: Near, used: dict[Name, Any]) -> Name:
        """The name of something that was made here, and is in the object store from now on."""
        import ray

        if one not in self._made:
            self._serial += 1
            name = Name(0, self._serial)
            self._made[one], self._far[name] = name, one
            self._put[name] = ray.put(packing.encoded(one, name))
            self._watch(one, name)
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
            self._watch(one, told.name)
        if told.kind == "mask of model":
            assert isinstance(one, se.Model)
            return one.bitmap
        return one

    def _watch(self, one: Near, name: Name) -> None:
        """Hear of it when nobody refers to it any more."""
        finalize(one, self._dead.append, name).atexit = False

    def _fetched(self, name: Name) -> Near:
        import ray

        while True:
            try:
                ((_, blob),) = taken(self.places.keepers()[name.maker], [name])
                break
            except (ray.exceptions.RayError, Lost):
                self.mend()
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

    def _settle(self) -> None:
        for one in [*self._far.values()] if self.places.all else ():
            if isinstance(one, FarModel | FarBitmap):
                one.settle()
