"""What a board says 50 times per second while something is measured: power, its counter, clocks and heat."""

import threading
from typing import NamedTuple

from fl.run.meters.board import Board, Power, State
from fl.run.meters.power import Sample
from fl.run.meters.ticks import Time

POLL_S = 0.02
_STATE = 50  # polls from one look at clocks and heat to the next: a second
_OLD_S = 5.0  # a stamp that is older, or of the future, is by another clock


class Seen(NamedTuple):
    """Since `begin`."""

    samples: list[Sample]
    states: list[State]
    failure: str | None  # of NVML
    went_back: bool  # the counter
    still_s: float  # longest time for which the counter did not move


class Watch:
    def __init__(self, board: Board, time: Time) -> None:
        self._board, self._time, self._lock = board, time, threading.Lock()
        self._stamp, self._polls = -1.0, 0
        self._samples: list[Sample] = []
        self._failure: str | None = None
        self._clear()
        self._end = time.every(POLL_S, self.poll)

    def close(self) -> None:
        self._end()

    def begin(self) -> None:
        """Forget what was seen; the last power still holds."""
        with self._lock:
            self._clear()
        self.poll()

    def poll(self) -> None:
        """One look; the meter's thread takes most of them."""
        with self._lock:
            try:
                self._look()
            except self._board.lost as wrong:
                self._failure = f"NVML stopped answering: {wrong}"

    def seen(self) -> Seen:
        with self._lock:
            return Seen(
                [*self._samples], [*self._states], self._failure, self._went_back, round(self._still, 3)
            )

    def _clear(self) -> None:
        self._samples, self._polls = self._samples[-1:], 0
        self._states: list[State] = []
        self._failure, self._went_back, self._still = None, False, 0.0
        self._joules: float | None = None
        self._moved = self._time.now()

    def _look(self) -> None:
        now, power = self._time.now(), self._board.power()
        if power is not None:
            self._add(now, power)
        self._compare(now, self._board.joules())
        if self._polls % _STATE == 0:
            self._states.append(self._board.state())
        self._polls += 1

    def _add(self, now: float, power: Power) -> None:
        """On the driver's own stamps where they make sense: a value that is read twice is one sample."""
        age = self._time.epoch() - power.stamp
        stamped = 0 <= age <= _OLD_S
        if stamped and power.stamp == self._stamp:
            return
        at = now - age if stamped else now
        if not self._samples or at > self._samples[-1].at:
            self._samples.append(Sample(at, power.watts))
            self._stamp = power.stamp

    def _compare(self, now: float, joules: float | None) -> None:
        if joules is None:
            return
        if self._joules is not None and joules < self._joules:
            self._went_back = True
        if joules != self._joules:
            self._moved = now
        self._joules = joules
        self._still = max(self._still, now - self._moved)
