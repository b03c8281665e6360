"""What a backend derives from a convolution, kept from call to call, with a bound."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import RLock
from typing import TypeVar
from weakref import WeakValueDictionary

T = TypeVar("T")
MOST = 32  # plans per convolution: a training run has about ten, one per direction and batch size


class Plans:
    """The plans that were used last, and the parts that several of them share.

    Threads may share one: whatever is missing is made under the lock.
    """

    def __init__(self, most: int = MOST) -> None:
        self.most = most
        self._plans: OrderedDict[Hashable, object] = OrderedDict()
        self._parts: WeakValueDictionary[Hashable, object] = WeakValueDictionary()
        self._lock = RLock()  # a plan makes its parts

    def __len__(self) -> int:
        return len(self._plans)

    def plan(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the plan of `key`, made if it is missing. Beyond `most`, drop the least recently used."""
        with self._lock:
            if key not in self._plans:
                self._plans[key] = make()
            self._plans.move_to_end(key)
            if len(self._plans) > self.most:
                self._plans.popitem(last=False)
            return self._plans[key]  # type: ignore[return-value]  # a key has one type of plan

    def part(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the part of `key`, made if it is missing. Parts live as long as a plan that holds them."""
        with self._lock:
            found = self._parts.get(key)
            if found is None:
                found = self._parts[key] = make()
            return found  # type: ignore[return-value]  # a key has one type of part

    def parts(self) -> list[object]:
        """Return the parts that are alive."""
        with self._lock:
            return list(self._parts.values())
