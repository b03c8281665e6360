"""What a meter is: it measures a round, and the loop puts what it read into the round's line."""

from typing import ClassVar, Protocol

from fl.keys import Key

Readings = dict[str, float | None]


class Meter(Protocol):
    """Started as a round begins and stopped as it ends, by the loop's thread.

    `keys` are of rounds, and measured. `stop` has a value for each; None: nothing could be read. Never 0 for
    what nobody knows.
    """

    keys: ClassVar[tuple[Key, ...]]

    def start(self) -> None: ...
    def stop(self) -> Readings: ...
