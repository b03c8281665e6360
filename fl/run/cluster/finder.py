"""What the names of one batch stand for, on the machine that trains it."""

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import sparse_engine as se
from fl.algorithms.tasks import Inputs
from fl.run.cluster import packing
from fl.run.cluster.exchange import answer, taken
from fl.run.cluster.far import Far, FarModel, Name, Near, make
from fl.run.cluster.packing import Told
from fl.run.cluster.shelf import Shelf


class Finder:
    """`put`: what the driver made, by name, in the object store; `keepers`: of the rest, by who made it."""

    def __init__(self, shelf: Shelf, put: Mapping[Name, Any], keepers: Mapping[int, Any]) -> None:
        self._shelf, self._keepers = shelf, keepers
        self._put = {Name(*name): ref for name, ref in put.items()}
        self._far: dict[Name, Far] = {}

    def found(self, told: Told) -> Near:
        """The object itself where it is here, else a far one."""
        one = self._shelf.here(told.name)
        if one is None:
            if told.name not in self._far:
                kind = "mask" if told.kind == "mask" else "model"
                far = make(kind, told.name, told.stored, self._shelf.layout, self._near)
                self._far[told.name] = far
            one = self._far[told.name]
        if told.kind != "mask of model":
            return one
        assert isinstance(one, se.Model)
        return one.bitmap

    def fetch(self, tasks: Iterable[Any]) -> None:
        """Bring at once what clients' neighbours sent them, which is needed for sure. Everything else is
        brought when work asks for it."""
        far = dict[Name, FarModel]()
        for task in tasks:
            for one in task.neighbours if isinstance(task, Inputs) else ():
                if isinstance(one, FarModel) and one.name is not None:
                    far[one.name] = one
        for name, found in self._brought([*far]).items():
            assert isinstance(found, se.Model)
            far[name].hold(found)

    def _near(self, name: Name) -> Near:
        return self._brought([name])[name]

    def _brought(self, names: Sequence[Name]) -> dict[Name, Near]:
        """All of these, each fetched by one thread alone."""
        found = dict[Name, Near]()
        while left := [name for name in names if name not in found]:
            ours, others = list[Name](), list[threading.Event]()
            with self._shelf.lock:
                for name in left:
                    if (here := self._shelf.here(name)) is not None:
                        found[name] = here
                    elif name in self._shelf.fetching:
                        others.append(self._shelf.fetching[name])
                    else:
                        self._shelf.fetching[name] = threading.Event()
                        ours.append(name)
            try:
                for name, blob in self._blobs(ours):
                    found[name] = self._shelf.see(name, blob)
            finally:
                with self._shelf.lock:
                    for name in ours:
                        self._shelf.fetching.pop(name).set()
            for event in others:
                event.wait()
        return found

    def _blobs(self, names: Sequence[Name]) -> Iterator[tuple[Name, packing.Blob]]:
        by_maker: dict[int, list[Name]] = {}
        for name in names:
            if name in self._put:
                yield name, answer(self._put[name])
            else:
                by_maker.setdefault(name.maker, []).append(name)
        for maker, some in by_maker.items():
            yield from taken(self._keepers[maker], some)
