"""What a meter is: it measures a round, and the loop puts what it read into the round's line."""

from typing import Any, ClassVar, NamedTuple, Protocol

from fl.keys import Key

Readings = dict[str, Any]  # numbers, or text where a key is text; None: nothing could be read

FEWEST = 20  # updates of a counter in a window that a benchmark takes


class Meter(Protocol):
    """Started as a round begins and stopped as it ends, by the loop's thread.

    `keys` are of rounds, and measured. `stop` has a value for each; None: nothing could be read. Never 0 for
    what nobody knows.
    """

    keys: ClassVar[tuple[Key, ...]]

    def start(self) -> None: ...
    def stop(self) -> Readings: ...


class Window(NamedTuple):
    """Joules of one thing (a board, the packages of a machine) between two readings."""

    joules: float | None  # None: what was read cannot be trusted, and `notes` say why
    seconds: float
    notes: tuple[str, ...] = ()

    @property
    def watts(self) -> float | None:
        return None if self.joules is None else self.joules / self.seconds


class JouleMeter(Meter, Protocol):
    """A meter of joules. `windows` are of what was measured last, one per thing, always in the same order."""

    source: str  # where its joules come from, in words: it stands in every result
    period_s: float  # how often what it reads is updated
    windows: tuple[Window, ...]

    def close(self) -> None: ...


def total(windows: tuple[Window, ...]) -> float | None:
    """Joules of all; None: those of one are unknown."""
    joules = [window.joules for window in windows]
    known = [one for one in joules if one is not None]
    return sum(known) if joules and len(known) == len(joules) else None


def notes(windows: tuple[Window, ...]) -> list[str]:
    """What there is to say of all, each once."""
    return [*dict.fromkeys(note for window in windows for note in window.notes)]
