"""Buffers of a list of steps, and where each lies in the workspace: those that never live at once may share.

A buffer lives from the first step that names it to the last. One after the other, in the best of several
orders, is placed as low as there is room throughout its life.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

LINE = 16  # floats of a cache line


@dataclass(eq=False)
class Buffer:
    """So many floats. `pinned`: at the beginning of the workspace, for the whole list."""

    size: int
    what: str
    pinned: bool = False


@dataclass(frozen=True)
class Planned:
    """A native step before it has places: its class, and fields whose buffers are still objects."""

    kind: str
    fields: dict[str, Any]

    def __str__(self) -> str:
        conv = self.fields.get("conv")
        return self.kind if conv is None else f"{self.kind} {conv.step.name}"

    @property
    def buffers(self) -> list[Buffer]:
        return [x for x in self.fields.values() if isinstance(x, Buffer)]


@dataclass(frozen=True)
class Places:
    """Where buffers lie, and how long the workspace is. `alone`: its length if no two shared memory."""

    at: dict[Buffer, int]
    size: int
    alone: int


def place(steps: Sequence[Planned]) -> Places:
    """Return the places of all buffers of a list: the best of several orders."""
    lives: dict[Buffer, tuple[int, int]] = {}
    for i, step in enumerate(steps):
        for buffer in step.buffers:
            first, _ = lives.get(buffer, (i, i))
            lives[buffer] = (-1, len(steps)) if buffer.pinned else (first, i)

    def length(b: Buffer) -> int:
        return lives[b][1] - lives[b][0] + 1

    orders = [
        lambda b: (not b.pinned, -b.size),
        lambda b: (not b.pinned, -b.size, -length(b)),
        lambda b: (not b.pinned, -length(b) * b.size),
        lambda b: (not b.pinned, -length(b), -b.size),
    ]
    found = [_placed(sorted(lives, key=order), lives) for order in orders]
    return min(found, key=lambda places: places.size)


def _placed(order: Sequence[Buffer], lives: dict[Buffer, tuple[int, int]]) -> Places:
    """Return places, each the lowest that is free when its turn comes."""
    at: dict[Buffer, int] = {}
    for buffer in order:
        first, last = lives[buffer]
        taken = sorted(
            (at[other], at[other] + _whole(other.size))
            for other in at
            if lives[other][0] <= last and first <= lives[other][1]
        )
        low = 0
        for lo, hi in taken:
            if lo - low >= _whole(buffer.size):
                break
            low = max(low, hi)
        at[buffer] = low
    size = max((at[b] + _whole(b.size) for b in at), default=0)
    return Places(at, size, sum(_whole(b.size) for b in at))


def _whole(size: int) -> int:
    return -(-max(size, 1) // LINE) * LINE
