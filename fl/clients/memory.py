"""Clients in the memory of this process: a tuple of values, and one of versions."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic

from fl.clients.base import C, pairs_of


@dataclass(frozen=True)
class Held(Generic[C]):
    """A base.Ref that has the value: where it is sent, the value goes with it."""

    client: int
    version: int
    value: C

    def get(self) -> C:
        return self.value


class InMemory(Generic[C]):
    """base.Clients of these values; `versions`: default 0 each.

    >>> first = InMemory(["a", "b", "c"])
    >>> second = first.with_({1: "B"})
    >>> [*first], [*second], second.ref(1)
    (['a', 'b', 'c'], ['a', 'B', 'c'], Held(client=1, version=1, value='B'))
    """

    def __init__(self, values: Iterable[C], versions: Iterable[int] | None = None) -> None:
        self._values = tuple(values)
        self._versions = (0,) * len(self._values) if versions is None else tuple(versions)
        if len(self._versions) != len(self._values):
            raise ValueError(
                f"expected a version per client, got {len(self._versions)} of {len(self._values)} clients"
            )

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, k: int, /) -> C:
        return self._values[self._there(k)]

    def __iter__(self) -> Iterator[C]:
        return iter(self._values)

    def __repr__(self) -> str:
        return f"InMemory({len(self):,} clients, versions up to {max(self._versions, default=0)})"

    def ref(self, k: int) -> Held[C]:
        """Client k's value, with its address."""
        return Held(int(k), self._versions[self._there(k)], self._values[k])

    def with_(self, changed: Mapping[int, C] | Iterable[tuple[int, C]]) -> "InMemory[C]":
        """The population with other values of some clients, one version later."""
        values, versions = [*self._values], [*self._versions]
        for k, value in pairs_of(changed):
            values[self._there(k)] = value
            versions[k] = self._versions[k] + 1
        return InMemory(values, versions)

    def _there(self, k: int) -> int:
        if not 0 <= k < len(self):
            raise IndexError(f"expected a client from 0 to {len(self) - 1}, got {k}")
        return k
