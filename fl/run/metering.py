"""The meters of a run while its rounds run: those that every run has, and joules where somebody asked."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from fl.run.events import Listener
from fl.run.meters import Meter
from fl.run.meters import energy as energies
from fl.run.meters.base import Readings
from fl.run.meters.energy import Energy, How


class Metering:
    def __init__(self, meters: Sequence[Meter], energy: Energy | None, listener: Listener) -> None:
        self._energy, self._listener = energy, listener
        self._meters: list[Meter] = [*meters] if energy is None else [energy, *meters]
        self._said: set[str] = set()

    @property
    def facts(self) -> dict[str, str]:
        """Where joules come from, or why there are none; empty: nobody asked for them."""
        return {} if self._energy is None else self._energy.facts

    def begin(self) -> None:
        """Before the first round: the user hears what is measured, and the machine idles for a while."""
        if self._energy is not None:
            self._listener.meters_chosen(self.facts)
            self._energy.begin()

    def end(self) -> dict[str, str]:
        """After the last round: what there is to add to the facts."""
        return {} if self._energy is None else self._energy.end()

    def start(self) -> None:
        """A round begins."""
        for meter in self._meters:
            meter.start()

    def stop(self) -> Readings:
        """What was read of the round."""
        readings: Readings = {}
        for meter in reversed(self._meters):
            readings = meter.stop() | readings
        self._tell(readings.get("energy_note"))
        return readings

    def _tell(self, note: str | None) -> None:
        """Once each."""
        if note is not None and note not in self._said:
            self._said.add(note)
            self._listener.note(note)


@contextmanager
def opened(meters: Sequence[Meter], how: How | None, listener: Listener) -> Iterator[Metering]:
    """`how`: joules are measured too."""
    energy = None if how is None else energies.opened(how)
    try:
        yield Metering(meters, energy, listener)
    finally:
        if energy is not None:
            energy.close()
