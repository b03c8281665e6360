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
from fl.run.cluster.connection import ClusterError
from fl.run.cluster.far import Name
from fl.run.cluster.keeper import Keeper
from fl.run.cluster.node import Node

_START_S = 300.0  # a worker has started, with data and network, or never will
_ALIVE_S = 60.0  # a worker that does not answer for so long is dead
_CALLS = 6  # that an actor answers at a time


@dataclass
class Place:
    """A worker. `machine`, `kept_by`: ids of machines."""

    number: int
    machine: str
    name: str
    workers: int
    kept_by: str
    actor: Any = None


class Places:
    """All of them. `setting`: pickled, in the object store."""

    def __init__(
        self, setting: Any, numerics: Mapping[str, str], workers: int | None, note: Callable[[str], None]
    ) -> None:
        """`workers`: clients that a machine trains at a time; None: one per core."""
        self._setting, self._numerics, self._workers, self._note = setting, numerics, workers, note
        self._numbers = count(1)
        self._keepers: dict[str, Any] = {}  # by machine
        self.all: list[Place] = []
        self._heirs: dict[int, int] = {}  # worker that died: worker that has its models

    def start(self) -> None:
        """A worker and a keeper per machine, with the same numerics as here. ClusterError: it cannot be."""
        machines = connection.nodes()
        if not machines:
            raise ClusterError("expected machines with CPUs in the cluster, got none")
        ids = [*machines]
        for machine, after in zip(ids, [*ids[1:], ids[0]], strict=True):
            self._keepers[machine] = self._keeper(machine)
            self.all.append(self._place(machine, machines[machine], after))
        for place in self.all:
            self._begin(place)
        self._check()

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
        own = {place.number: self._keepers[place.kept_by] for place in self.all}
        return own | {dead: own[self.owner(dead)] for dead in self._heirs}

    def forget(self, names: Collection[Name]) -> None:
        """Nobody refers to these any more."""
        if names:
            for actor in (*(place.actor for place in self.all), *self._keepers.values()):
                actor.forget.remote(names)

    def mend(self, alive: Iterable[Name]) -> None:
        """Start anew what died. `alive`: names that somebody refers to. ClusterError: too much is lost."""
        by_owner: dict[int, list[Name]] = {}
        for name in alive:
            if name.maker:
                by_owner.setdefault(self.owner(name.maker), []).append(name)
        machines = connection.nodes()
        dead = [place for place in self.all if place.machine not in machines or not _answers(place.actor)]
        gone = {id for id, actor in self._keepers.items() if id not in machines or not _answers(actor)}
        machines = {id: facts for id, facts in machines.items() if id in self._keepers}  # nobody new
        self._check_left(dead, gone, by_owner, bool(machines))
        if not dead and not gone:
            return
        self._note(_told(dead, {p.machine: p.name for p in self.all}, gone, machines))
        old = {place.number: self._keepers[place.kept_by] for place in dead}
        for machine in gone:
            del self._keepers[machine]
            if machine in machines:
                self._keepers[machine] = self._keeper(machine)
        self.all = [place for place in self.all if place not in dead]
        ids = [*self._keepers]
        for place in self.all:
            if place.kept_by in gone:
                place.kept_by = _next(ids, place.machine)
                _get(place.actor.copy_to.remote(self._keepers[place.kept_by]))
        fresh = {}
        for place in dead:
            if place.machine in machines:
                fresh[place.number] = self._place(
                    place.machine, machines[place.machine], _next(ids, place.machine)
                )
                self._begin(fresh[place.number])
                self.all.append(fresh[place.number])
        if fresh:
            self._check()
        for place in dead:
            heir = fresh.get(place.number) or self._nearest(place.kept_by)
            if place.kept_by not in gone:  # else it had nothing that anybody refers to
                makers = [place.number, *(x for x in self._heirs if self.owner(x) == place.number)]
                names = _get(heir.actor.adopt.remote(makers, old[place.number]))
                if self._keepers[heir.kept_by] is not old[place.number]:
                    old[place.number].forget.remote(names)
            self._heirs[place.number] = heir.number

    def close(self) -> None:
        import ray

        for actor in (*(place.actor for place in self.all), *self._keepers.values()):
            ray.kill(actor)
        self.all, self._keepers = [], {}

    def _place(self, machine: str, facts: Mapping[str, Any], kept_by: str) -> Place:
        return Place(next(self._numbers), machine, facts["name"], self._workers or facts["cores"], kept_by)

    def _begin(self, place: Place) -> None:
        made = _actor(Node, place.machine, place.workers)
        isa = self._numerics["instruction set"]
        place.actor = made.remote(
            place.number, self._setting, place.workers, isa, self._keepers[place.kept_by]
        )

    def _keeper(self, machine: str) -> Any:
        return _actor(Keeper, machine, 0).remote()

    def _check(self) -> None:
        """ClusterError: a worker does not start, or computes otherwise than this process."""
        import ray

        calls = {place.actor.numerics.remote(): place for place in self.all}
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
            except ray.exceptions.RayActorError as wrong:
                raise ClusterError(
                    f"expected a worker on {place.name}, got: {_last_line(wrong)} "
                    "(is the same sparsefl installed there?)"
                ) from wrong
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

    def _check_left(
        self, dead: list[Place], gone: set[str], owned: Mapping[int, list[Name]], any_left: bool
    ) -> None:
        lost = [place.name for place in dead if place.kept_by in gone and owned.get(place.number)]
        if not any_left or lost:
            which = ", ".join(sorted({place.name for place in dead})) or "all"
            raise ClusterError(
                f"expected machines that have the clients' models, got them lost ({which}), and no copy "
                "elsewhere; nothing is lost of the last checkpoint: go on with --resume DIR"
            )

    def _nearest(self, machine: str) -> Place:
        """The worker on a machine, or else the first one."""
        return next((place for place in self.all if place.machine == machine), self.all[0])


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
    except ray.exceptions.RayActorError:
        return False
    except ray.exceptions.GetTimeoutError:
        ray.kill(actor)
        return False


def _get(call: Any) -> Any:
    import ray

    return ray.get(call)


def _next(ids: list[str], machine: str) -> str:
    """The machine after this one."""
    return ids[(ids.index(machine) + 1) % len(ids)] if machine in ids else ids[0]


def _told(dead: list[Place], names: Mapping[str, str], gone: set[str], left: Collection[str]) -> str:
    lost = {place.machine: place.name for place in dead} | {id: names.get(id, id[:8]) for id in gone}
    machines = [name for id, name in lost.items() if id not in left]
    processes = [name for id, name in lost.items() if id in left]
    parts = [f"lost {name}: others go on with its clients" for name in machines]
    parts += [f"a process on {name} died: it is started anew" for name in processes]
    return "; ".join(parts)


def _last_line(wrong: BaseException) -> str:
    lines = str(wrong).strip().splitlines()
    return lines[-1].strip() if lines else type(wrong).__name__
