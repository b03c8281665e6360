"""The card: its memory, and launches on it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from virtual_card.counts import Counts
from virtual_card.lanes import Launch
from virtual_card.memory import Memory
from virtual_card.ptx import parse
from virtual_card.running import run


class Launched(NamedTuple):
    """A launch that is over."""

    kernel: str
    grid: tuple[int, int, int]
    counts: Counts


@dataclass
class Card:
    """Memory, what was launched, and what the host did (`events`: launches, copies, syncs by name)."""

    memory: Memory = field(default_factory=Memory)
    launches: list[Launched] = field(default_factory=list)
    events: Counts = field(default_factory=Counts)
    seed: int = 0

    def launch(self, ptx: str, grid: Sequence[int], arguments: Sequence[int], shared: int) -> Counts:
        """Run a kernel. arguments: the bits of its parameters (two pointers to scratch memory may be left
        out); shared: bytes per program."""
        kernel = parse(ptx)
        given = (*arguments, *[0] * (len(kernel.parameters) - len(arguments)))
        x, y, z = (*grid, 1, 1)[:3]
        counts = Counts()
        self.events["launch"] += 1
        run(Launch(kernel, (x, y, z), given, shared, self.memory, counts, self.seed))
        self.launches.append(Launched(kernel.name, (x, y, z), counts))
        return counts

    @property
    def syncs(self) -> int:
        """How often the host waited for the card."""
        return sum(number for name, number in self.events.items() if name.startswith("sync:"))
