"""A part of every client, as a population."""

from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from fl.clients.base import Population

Part = TypeVar("Part")


class View(Generic[Part]):
    """base.Population of `part(client)`, which is read when somebody asks for it, and not kept.

    >>> View(["ab", "c"], len)[0]
    2
    """

    def __init__(
        self, clients: Population[Any], part: Callable[[Any], Part], path: str | None = None
    ) -> None:
        """`path`: what `part` is the attribute of, where it is one ("model")."""
        self.clients, self._part, self.path = clients, part, path

    def __len__(self) -> int:
        return len(self.clients)

    def __getitem__(self, k: int, /) -> Part:
        return self._part(self.clients[k])

    def __iter__(self) -> Iterator[Part]:
        return map(self._part, self.clients)
