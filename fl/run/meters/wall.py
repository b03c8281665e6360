"""The clock on the wall."""

from time import perf_counter
from typing import ClassVar

from fl.keys import Key
from fl.run.meters.base import Readings


class Wall:
    """Seconds that a round took."""

    keys: ClassVar[tuple[Key, ...]] = (
        Key(
            "wall_s",
            "the round from the first message to the last test. Starting a program, building networks, "
            "writing lines and checkpoints are not in it",
            unit="s",
            kind="measured",
        ),
    )

    def __init__(self) -> None:
        self._began = 0.0

    def start(self) -> None:
        self._began = perf_counter()

    def stop(self) -> Readings:
        return {"wall_s": perf_counter() - self._began}
