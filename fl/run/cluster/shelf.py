"""The models and masks that lie on one machine, by name.

own     made here, or taken over from a machine that died: until nobody refers to them
seen    those of others, fetched once each; the least used go first where they take too much memory
"""

import threading
from collections import OrderedDict
from collections.abc import Iterable
from weakref import WeakKeyDictionary

import sparse_engine as se
from fl.run.cluster import packing
from fl.run.cluster.far import INITIAL, Name, Near


class Shelf:
    """For several threads. `number`: of the worker; `initial`: w0; `most`: bytes of others' models."""

    def __init__(self, number: int, initial: se.Model, most: int) -> None:
        self.lock = threading.RLock()
        self.layout = initial.layout
        self.fetching: dict[Name, threading.Event] = {}  # what some thread is fetching now
        self.fetched, self.most_seen = 0, 0  # how often something was fetched, and the most that lay here
        self._number, self._initial, self._most = number, initial, most
        self._own: dict[Name, Near] = {}
        self._seen: OrderedDict[Name, tuple[Near, int]] = OrderedDict()
        self._names: WeakKeyDictionary[Near, Name] = WeakKeyDictionary()
        self._names[initial] = INITIAL
        self._serial, self._bytes = 0, 0

    def here(self, name: Name) -> Near | None:
        """What has this name, if it is here."""
        with self.lock:
            if name == INITIAL:
                return self._initial
            if name in self._seen:
                self._seen.move_to_end(name)
                return self._seen[name][0]
            return self._own.get(name)

    def named(self, one: Near, fresh: dict[Name, Near]) -> Name:
        """The name of something that is here; `fresh`: gets it if it has none yet."""
        with self.lock:
            if one not in self._names:
                self._serial += 1
                name = Name(self._number, self._serial)
                self._names[one] = name
                self._own[name] = fresh[name] = one
            return self._names[one]

    def adopt(self, name: Name, blob: packing.Blob) -> None:
        """Somebody else's, which is ours from now on."""
        one = packing.decoded(blob, self.layout)
        with self.lock:
            self._own[name], self._names[one] = one, name

    def see(self, name: Name, blob: packing.Blob) -> Near:
        """Keep what was fetched, and let go of what nobody asked for longest."""
        one, size = packing.decoded(blob, self.layout), len(blob[1])
        with self.lock:
            self.fetched += 1
            self._seen[name], self._names[one] = (one, size), name
            self._bytes += size
            while len(self._seen) > 1 and self._bytes > self._most:
                _, (_, old) = self._seen.popitem(last=False)
                self._bytes -= old
            self.most_seen = max(self.most_seen, self._bytes)
        return one

    def forget(self, names: Iterable[tuple[int, int]]) -> None:
        """Nobody refers to these any more."""
        with self.lock:
            for name in map(Name._make, names):
                self._own.pop(name, None)
                if (seen := self._seen.pop(name, None)) is not None:
                    self._bytes -= seen[1]

    @property
    def own(self) -> dict[Name, Near]:
        """What was made here: a copy of the table."""
        with self.lock:
            return {**self._own}

    @property
    def num_seen(self) -> int:
        return len(self._seen)
