"""The worker of one machine: an actor with threads that train (fl/run/executor.py) and the models that were
made here.

    own     models and masks made here, or taken over from a machine that died: until nobody refers to them
    seen    those of others, fetched once each; the least used go first where they take too much memory

A call of `run` is a batch of clients. Several calls overlap: while one trains, the next fetches what it needs
and the one before it leaves copies at the keeper.
"""

import os
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any
from weakref import WeakKeyDictionary

import torch

import sparse_engine as se
from fl.algorithms.base import Inputs
from fl.errors import Stopped
from fl.run.cluster import packing
from fl.run.cluster.far import INITIAL, FarModel, Name, Near, make
from fl.run.cluster.packing import Told
from fl.run.executor import Threads
from fl.train.setting import Setting

PIECE = 64 << 20  # bytes that one call to a keeper asks for or sends, about
SEEN = 2 << 30  # bytes of others' models that are kept


class Lost(Exception):
    """A keeper did not answer, or has not what it should."""


class Node:
    """`number`: of this worker, never used twice. `keeper`: where copies go."""

    def __init__(self, number: int, setting: bytes, workers: int, isa: str, keeper: Any) -> None:
        from ray import cloudpickle

        torch.set_num_threads(1)
        self._context = ExitStack()
        with suppress(ValueError, RuntimeError):  # there is none of that name here: `numerics` will tell
            self._context.enter_context(se.use_isa(isa))
        self._setting: Setting = cloudpickle.loads(setting)
        self._layout = self._setting.initial.layout
        self._threads = Threads(self._setting, workers)
        self._number, self._keeper = number, keeper
        self._own: dict[Name, Near] = {}
        self._seen: OrderedDict[Name, Near] = OrderedDict()
        self._sizes: dict[Name, int] = {}
        self._names: WeakKeyDictionary[Near, Name] = WeakKeyDictionary()
        self._names[self._setting.initial] = INITIAL
        self._serial, self._stopped, self._lock = 0, -1, threading.RLock()
        self._fetching: dict[Name, threading.Event] = {}

    def numerics(self) -> dict[str, str]:
        """What the bits of results depend on here."""
        return se.numerics() | {"path": str(self._setting.path)}

    def warm_up(self, clients: int) -> None:
        self._threads.warm_up(clients)

    def ping(self) -> None:
        """It lives."""

    def run(
        self, turn: int, given: bytes, put: Mapping[Name, Any], keepers: Mapping[int, Any]
    ) -> list[bytes]:
        """Outcomes of a batch, packed. `put`: what the driver made, by name, in the object store; `keepers`:
        of models, by who made these. Lost: a keeper is gone, so the batch has to be done again."""
        finder = _Finder(self, put, keepers)
        work, tasks = packing.unpack(given, finder.found)
        finder.fetch(_neighbours(tasks.values()))
        outcomes, fresh = list[bytes](), dict[Name, Near]()
        copies = _Copies(self._keeper)
        for outcome in self._threads.run(work, tasks):
            if turn <= self._stopped:
                raise Stopped
            outcomes.append(packing.pack(outcome, lambda one: self._named(one, fresh)))
            copies.add(fresh)
            fresh.clear()
        copies.wait()
        return outcomes

    def stop(self, turn: int) -> None:
        """Batches of this turn end as soon as they can."""
        self._stopped = turn

    def forget(self, names: Iterable[Name]) -> None:
        """Nobody refers to these any more."""
        with self._lock:
            for name in map(Name._make, names):
                self._own.pop(name, None)
                self._seen.pop(name, None)
                self._sizes.pop(name, None)

    def adopt(self, makers: Sequence[int], keeper: Any) -> list[Name]:
        """Take over what workers that died have made; `keeper` has it. Return its names."""
        names = [Name(*name) for name in _answer(keeper.names.remote(makers))]
        copies = _Copies(self._keeper)
        for name, blob in _taken(keeper, names):
            one = packing.decoded(blob, self._layout)
            with self._lock:
                self._own[name], self._names[one] = one, name
            copies.send({name: blob})
        copies.wait()
        return names

    def copy_to(self, keeper: Any) -> None:
        """From now on copies go to another keeper: all that there are."""
        self._keeper = keeper
        with self._lock:
            own = {**self._own}
        copies = _Copies(keeper)
        for name, one in own.items():
            copies.add({name: one})
        copies.wait()

    def facts(self) -> dict[str, int]:
        """How many models and masks there are, and who this is."""
        with self._lock:
            return {"pid": os.getpid(), "own": len(self._own), "seen": len(self._seen)}

    def _named(self, one: Near, fresh: dict[Name, Near]) -> Name:
        with self._lock:
            if one not in self._names:
                self._serial += 1
                name = Name(self._number, self._serial)
                self._names[one] = name
                self._own[name] = fresh[name] = one
            return self._names[one]

    def _here(self, name: Name) -> Near | None:
        with self._lock:
            if name == INITIAL:
                return self._setting.initial
            if name in self._seen:
                self._seen.move_to_end(name)
                return self._seen[name]
            return self._own.get(name)

    def _see(self, name: Name, one: Near, size: int) -> None:
        """Keep what was fetched, and let go of what nobody asked for longest."""
        with self._lock:
            self._seen[name], self._names[one], self._sizes[name] = one, name, size
            while len(self._seen) > 1 and sum(map(self._sizes.__getitem__, self._seen)) > SEEN:
                old, _ = self._seen.popitem(last=False)
                del self._sizes[old]


class _Finder:
    """What the names of one batch stand for."""

    def __init__(self, node: Node, put: Mapping[Name, Any], keepers: Mapping[int, Any]) -> None:
        self._node, self._keepers = node, keepers
        self._put = {Name(*name): ref for name, ref in put.items()}

    def found(self, told: Told) -> Near:
        """The object itself where it is here, else a far one."""
        here = self._node._here(told.name)
        if here is None:
            kind = "mask" if told.kind == "mask" else "model"
            here = make(kind, told.name, told.stored, self._node._layout, self.near)
        if told.kind != "mask of model":
            return here
        assert isinstance(here, se.Model)
        return here.bitmap

    def near(self, name: Name) -> Near:
        """Fetched, unless another thread has just done so."""
        self._bring([name])
        found = self._node._here(name)
        return found if found is not None else self.near(name)  # it went at once: the memory is short

    def fetch(self, models: Iterable[Near]) -> None:
        """Bring all of these at once: they stay while the far ones that stand for them do."""
        far = [one for one in models if isinstance(one, FarModel)]
        self._bring([*dict.fromkeys(one.name for one in far if one.name is not None)])
        for one in far:
            one.near()

    def _bring(self, names: Sequence[Name]) -> None:
        node = self._node
        with node._lock:
            ours = [name for name in names if node._here(name) is None and name not in node._fetching]
            others = [node._fetching[name] for name in names if name in node._fetching]
            for name in ours:
                node._fetching[name] = threading.Event()
        try:
            for name, blob in self._blobs(ours):
                node._see(name, packing.decoded(blob, node._layout), len(blob[1]))
        finally:
            with node._lock:
                for name in ours:
                    node._fetching.pop(name).set()
        for event in others:
            event.wait()

    def _blobs(self, names: Sequence[Name]) -> Iterator[tuple[Name, packing.Blob]]:
        import ray

        by_maker: dict[int, list[Name]] = {}
        for name in names:
            if name in self._put:
                yield name, ray.get(self._put[name])
            else:
                by_maker.setdefault(name.maker, []).append(name)
        for maker, some in by_maker.items():
            yield from _taken(self._keepers[maker], some)


class _Copies:
    """New models and masks, on their way to a keeper, about PIECE bytes at a time and one call ahead."""

    def __init__(self, keeper: Any) -> None:
        self._keeper, self._piece, self._size = keeper, dict[Name, packing.Blob](), 0
        self._sent = list[Any]()

    def add(self, fresh: Mapping[Name, Near]) -> None:
        self.send({name: packing.encoded(one, name) for name, one in fresh.items()})

    def send(self, blobs: Mapping[Name, packing.Blob]) -> None:
        self._piece.update(blobs)
        self._size += sum(len(data) for _, data in blobs.values())
        if self._size > PIECE:
            self._flush()

    def wait(self) -> None:
        """Until the keeper has all of them."""
        self._flush()
        self._settle(0)

    def _flush(self) -> None:
        if self._piece:
            self._settle(1)
            self._sent.append(
                self._keeper.keep.remote({tuple(name): blob for name, blob in self._piece.items()})
            )
            self._piece, self._size = {}, 0

    def _settle(self, left: int) -> None:
        while len(self._sent) > left:
            _answer(self._sent.pop(0))


def _taken(keeper: Any, names: Sequence[Name]) -> Iterator[tuple[Name, packing.Blob]]:
    """What a keeper has, about PIECE bytes at a time."""
    sizes = _answer(keeper.sizes.remote([*map(tuple, names)])) if len(names) > 1 else [1]
    piece, size = list[Name](), 0
    for i, (name, one) in enumerate(zip(names, sizes, strict=True)):
        piece.append(name)
        size += one
        if size > PIECE or i + 1 == len(names):
            for found, blob in zip(piece, _answer(keeper.give.remote([*map(tuple, piece)])), strict=True):
                if blob is None:
                    raise Lost(f"expected {found} at its keeper, got nothing")
                yield found, blob
            piece, size = [], 0


def _answer(call: Any) -> Any:
    import ray

    try:
        return ray.get(call)
    except ray.exceptions.RayError as wrong:
        raise Lost(str(wrong)) from None


def _neighbours(tasks: Iterable[Any]) -> Iterator[Near]:
    """What clients' neighbours sent them: it is needed for sure."""
    for task in tasks:
        if isinstance(task, Inputs):
            yield from task.neighbours
