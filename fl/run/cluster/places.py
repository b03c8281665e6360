"""The workers and keepers of a cluster, and what happens when one of them dies.

Every machine has a worker (node.py) and a keeper (keeper.py); a worker's copies are at the keeper of the next
machine, or of its own where there is only one. So each model is in two processes, on two machines if there
are two: any one of them may die, and nothing is lost. A worker that dies alone is started anew; when its
machine is gone, another one takes its models over. Two that die together may take models with them: the run
then ends, and goes on from its checkpoint (`--resume`).
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

from fl.run.cluster import connection
from fl.run.cluster import keeper as keepers
from fl.run.cluster.connection import ClusterError, Machine
from fl.run.cluster.far import Name
from fl.run.cluster.node import Node

_START_S = 300.0  # a worker has started, with data and network, or never will
_ALIVE_S = 60.0  # a worker that does not answer for so long is dead
_CALLS = 6  # that an actor answers at a time


class NotStarted(ClusterError):
    """A worker died before it did anything."""


@dataclass(eq=False)
class Place:
    """A worker, on the machine of an id and a name. `keeper`: where its copies are."""

    number: int
    machine: str
    name: str
    workers: int
    keeper: Any
    actor: Any


class Places:
    """All of them. `setting`: pickled, in the object store."""

    def __init__(
        self,
        setting: Any,
        numerics: Mapping[str, str],
        workers: int | None,
        seen: int,
        note: Callable[[str], None],
    ) -> None:
        """`workers`: clients that a machine trains at a time; None: one per CPU. `seen`: bytes of others'
        models that it keeps."""
        self._setting, self._numerics, self._workers, self._note = setting, numerics, workers, note
        self._seen = seen
        self._numbers = count(1)
        self._keepers: dict[str, Any] = {}  # by machine
        self.all: list[Place] = []
        self._machines: dict[str, str] = {}  # names of those that there were at first
        self._orphans: list[Place] = []  # workers that died, whose models nobody has taken over yet
        self._heirs: dict[int, int] = {}  # worker that died: worker that has its models

    def start(self) -> None:
        """A worker and a keeper per machine, with the same numerics as here. ClusterError: it cannot be."""
        machines = connection.machines()
        if not machines:
            raise ClusterError("expected machines with CPUs in the cluster, got none")
        small = [f"{name} ({cpus})" for name, cpus in machines.values() if cpus < (self._workers or 0)]
        if small:
            raise ClusterError(
                f"expected machines with {self._workers} CPUs, one per worker, got {', '.join(small)}: "
                "lower --workers, or `ray start --num-cpus`"
            )
        self._machines = {id: machine.name for id, machine in machines.items()}
        self._keepers = {id: self._keeper(id) for id in machines}
        self._check([self._begun(id, machine) for id, machine in machines.items()])

    @property
    def total(self) -> int:
        """Clients that are trained at a time."""
        return sum(place.workers for place in self.all)

    def owner(self, maker: int) -> int:
        """The worker that has what `maker` made."""
        while maker in self._heirs:
            maker = self._heirs[maker]
        return maker

    def keepers(self) -> dict[int, Any]:
        """Whom to ask for a model, by who made it."""
        own = {place.number: place.keeper for place in self.all}
        return own | {dead: own[self.owner(dead)] for dead in self._heirs}

    def forget(self, names: Collection[Name]) -> None:
        """Nobody refers to these any more."""
        if names:
            plain = [*map(tuple, names)]
            for actor in (*(place.actor for place in self.all), *self._keepers.values()):
                actor.forget.remote(plain)

    def mend(self, alive: Iterable[Name]) -> None:
        """Start anew what died. `alive`: names that somebody refers to. Every step can be done again, where
        an error of Ray ends it. ClusterError: too much is lost."""
        up = connection.machines()
        machines = {id: machine for id, machine in up.items() if id in self._machines}  # nobody new
        dead = [place for place in self.all if place.machine not in machines or not _answers(place.actor)]
        gone = [id for id, actor in self._keepers.items() if id not in machines or not _answers(actor)]
        if dead or gone:
            self._note(_told({place.machine for place in dead} | {*gone}, machines, self._machines))
        self._orphans += dead
        self.all = [place for place in self.all if place not in dead]
        self._keepers = {id: keeper for id, keeper in self._keepers.items() if id not in gone}
        wanted = {*alive}
        self._check_left({name.maker for name in wanted if name.maker}, machines)
        for id in machines:
            if id not in self._keepers:
                self._keepers[id] = self._keeper(id)
        for place in self.all:
            if place.keeper not in self._keepers.values():
                keeper = self._keepers[self._next(place.machine)]
                _answer(place.actor.copy_to.remote(keeper))
                place.keeper = keeper
        there = {place.machine for place in self.all}
        fresh = [self._begun(id, machines[id]) for id in machines if id not in there]
        if fresh:
            self._check(fresh)
        while self._orphans:
            self._inherit(self._orphans[-1], wanted)
            self._orphans.pop()

    def _inherit(self, dead: Place, alive: Collection[Name]) -> None:
        """Somebody takes over what a worker that died has made: on its machine, or where copies are."""
        kept = next((id for id, keeper in self._keepers.items() if keeper is dead.keeper), None)
        near = [place for at in (dead.machine, kept) for place in self.all if place.machine == at]
        heir = (near or self.all)[0]
        if kept is not None:  # else it had nothing that anybody refers to
            makers = [dead.number, *(x for x in self._heirs if self.owner(x) == dead.number)]
            wanted = {name for name in alive if name.maker in makers}
            _answer(heir.actor.adopt.remote(makers, dead.keeper, wanted, dead.keeper is heir.keeper))
        self._heirs[dead.number] = heir.number

    def close(self) -> None:
        import ray

        for actor in (*(place.actor for place in self.all), *self._keepers.values()):
            ray.kill(actor)
        self.all, self._keepers = [], {}

    def _begun(self, machine: str, facts: Machine) -> Place:
        """A worker that starts on a machine."""
        number, workers = next(self._numbers), self._workers or facts.cpus
        keeper = self._keepers[self._next(machine)]
        isa = self._numerics["instruction set"]
        actor = _actor(Node, machine, workers).remote(number, self._setting, workers, isa, keeper, self._seen)
        self.all.append(Place(number, machine, facts.name, workers, keeper, actor))
        return self.all[-1]

    def _keeper(self, machine: str) -> Any:
        from ray import cloudpickle

        cloudpickle.register_pickle_by_value(keepers)  # or it would import all of us
        return _actor(keepers.Keeper, machine, 0).remote()

    def _check(self, fresh: list[Place]) -> None:
        """ClusterError: a worker does not start, or computes otherwise than this process."""
        import ray

        calls = {place.actor.numerics.remote(): place for place in fresh}
        ready, late = ray.wait([*calls], num_returns=len(calls), timeout=_START_S)
        for call in ready:
            place = calls[call]
            try:
                found = ray.get(call)
            except ray.exceptions.RayTaskError as wrong:
                raise ClusterError(
                    f"expected a worker on {place.name}, got {type(wrong.cause).__name__}: {wrong.cause} "
                    "(is the same sparsefl installed there?)"
                ) from wrong
            except ray.exceptions.RayError as wrong:
                raise NotStarted(f"expected a worker on {place.name}, got: {_last_line(wrong)}") from wrong
            here = self._numerics
            other = [
                f"{key} {found.get(key)} instead of {here[key]}"
                for key in here
                if found.get(key) != here[key]
            ]
            if other:
                raise ClusterError(
                    f"expected all machines to compute alike, got on {place.name}: {', '.join(other)}; "
                    "install the same versions, or set SPARSE_ISA where the instruction sets differ"
                )
        if late:
            names = ", ".join(calls[call].name for call in late)
            raise ClusterError(
                f"expected workers within {_START_S:g} s, got none on {names}: are its CPUs taken by others?"
            )

    def _check_left(self, alive: Collection[int], machines: Collection[str]) -> None:
        """ClusterError: no machine is left, or something that is `alive` (by its maker) is nowhere."""
        makers, kept = {*map(self.owner, alive)}, [*self._keepers.values()]
        lost = [dead for dead in self._orphans if dead.keeper not in kept and dead.number in makers]
        if not machines or lost:
            which = ", ".join(sorted({dead.name for dead in self._orphans})) or "all"
            raise ClusterError(
                f"expected machines that have the clients' models, got them lost ({which}), and no copy "
                "elsewhere; nothing is lost of the last checkpoint: go on with --resume DIR"
            )

    def _next(self, machine: str) -> str:
        """The machine after this one."""
        ids = [*self._keepers]
        return ids[(ids.index(machine) + 1) % len(ids)]


def _actor(kind: type, machine: str, cpus: int) -> Any:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    where = NodeAffinitySchedulingStrategy(machine, soft=False)
    return ray.remote(kind).options(num_cpus=cpus, max_concurrency=_CALLS, scheduling_strategy=where)


def _answers(actor: Any) -> bool:
    import ray

    try:
        ray.get(actor.ping.remote(), timeout=_ALIVE_S)
        return True
    except ray.exceptions.GetTimeoutError:
        ray.kill(actor)
    except ray.exceptions.RayError:
        pass
    return False


def _answer(call: Any) -> Any:
    import ray

    return ray.get(call)


def _told(lost: Collection[str], left: Collection[str], names: Mapping[str, str]) -> str:
    machines = [names[id] for id in lost if id not in left]
    processes = [names[id] for id in lost if id in left]
    parts = [f"lost {name}: others go on with its clients" for name in machines]
    parts += [f"a process on {name} died: it is started anew" for name in processes]
    return "; ".join(parts)


def _last_line(wrong: BaseException) -> str:
    lines = str(wrong).strip().splitlines()
    return lines[-1].strip() if lines else type(wrong).__name__
