"""The population: what every client keeps between rounds, addressed by client and version.

An algorithm's state holds `Clients`. It reads `clients[k]`, and makes the next population by `with_`, which
names the clients that changed and no others. Work for a client gets references (`ref`) and reads them (`get`)
where it is done. So a population may be in memory (memory.py), in files, or on other machines.

    version     0 in the first population, and one more with every `with_` that names the client

What a store behind this interface may rely on:

- Populations never change. After `with_` both are there: a round reads the last one and makes the next.
- One client and version is one value, to the bit: in a round that is run again, and in a run that is resumed,
  for checkpoints keep versions.
- A round that fails or is interrupted is run again from the population before it. Once a round is over,
  versions that are not in the new population are read only by references that somebody still has.
- `get` may be called in any thread, more than once, and on a reference that was pickled.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol, TypeVar, runtime_checkable

C = TypeVar("C")
C_co = TypeVar("C_co", covariant=True)


class Ref(Protocol[C_co]):
    """A client's value at some version, which may lie elsewhere."""

    @property
    def client(self) -> int:
        """Its number."""

    @property
    def version(self) -> int:
        """How often it had changed."""

    def get(self) -> C_co:
        """The value."""


class Population(Protocol[C_co]):
    """One value per client, by number from 0 on. Tuples and lists are some too."""

    def __len__(self) -> int:
        """How many clients."""

    def __getitem__(self, k: int, /) -> C_co:
        """Client k's. IndexError: there is no such client."""

    def __iter__(self) -> Iterator[C_co]:
        """Everybody's, one after the other."""


@runtime_checkable
class Clients(Protocol[C]):
    """A `Population` with versions, of which the next one can be made."""

    def __len__(self) -> int:
        """How many clients."""

    def __getitem__(self, k: int, /) -> C:
        """Client k's. IndexError: there is no such client."""

    def __iter__(self) -> Iterator[C]:
        """Everybody's, one after the other."""

    def ref(self, k: int) -> Ref[C]:
        """A reference to client k's value as it is in this population."""

    def with_(self, changed: Mapping[int, C] | Iterable[tuple[int, C]]) -> "Clients[C]":
        """The population with other values of some clients, by number or as pairs (client, value) that are
        read once, as they come. IndexError: one of them is not there."""


def pairs_of(changed: Mapping[int, C] | Iterable[tuple[int, C]]) -> Iterable[tuple[int, C]]:
    """What `with_` is given, as pairs."""
    return changed.items() if isinstance(changed, Mapping) else changed
