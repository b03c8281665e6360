"""Joules of a round: of every meter that this machine has, together, and what idling would have taken.

    gross   energy_j        what the meters read, each over its own window
    net     energy_net_j    gross less idle power times those windows

Idle power is measured before the first round, and again after the last one: where both differ by more than a
tenth, the machine was not itself, and that is said. Where there is no meter, figures are null, never 0, and
`facts` say which library, file or permission is missing.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from fl.errors import NoMeter
from fl.keys import Key
from fl.run.meters import base, nvml, rapl
from fl.run.meters.base import JouleMeter, Readings, Window
from fl.run.meters.nvml import Nvml
from fl.run.meters.rapl import Rapl
from fl.run.meters.ticks import SYSTEM, Time

NONE = "no meter"
CPU, GPU, IDLE = "energy of CPU", "energy of GPU", "idle power"  # facts of an environment
IDLE_S = 5.0
NOISE = 0.02  # of gross joules, by which they may lie below what idling took
AGREE = 0.1  # idle power before and after, relative to the larger one


@dataclass(frozen=True)
class How:
    """What to measure, and how."""

    gpus: tuple[str, ...] = ()  # UUIDs; none: the CUDA devices that torch sees
    idle_s: float = IDLE_S  # of idling before and after; 0: net joules are unknown
    on_gpu: bool = False  # whether what is measured computes on boards


class Energy:
    keys: ClassVar[tuple[Key, ...]] = (
        Key(
            "energy_j",
            "of all meters together, over the round; environment says which there are",
            unit="J",
            kind="measured",
            null=True,
        ),
        Key("energy_net_j", "the same less idle power", unit="J", kind="measured", null=True),
        Key(
            "idle_w",
            "power of the idle machine before the first round of its process, by the same meters",
            unit="W",
            kind="measured",
            null=True,
        ),
        *Rapl.keys,
        *Nvml.keys,
        Key(
            "energy_note",
            "what makes joules of the round unknown or uncertain",
            unit="text",
            kind="measured",
            null=True,
        ),
    )

    def __init__(
        self,
        meters: Mapping[str, JouleMeter],
        missing: Mapping[str, str],
        idle_s: float = IDLE_S,
        time: Time = SYSTEM,
        on_gpu: bool = False,
    ) -> None:
        """`meters` and `missing` by fact; what is missing with its reason."""
        self._meters, self._missing = dict(meters), dict(missing)
        self._idle_s, self._time, self._on_gpu = idle_s, time, on_gpu
        self._before: tuple[float | None, ...] = ()
        self.same_idle = False  # before and after; known at the end

    @property
    def meters(self) -> Sequence[JouleMeter]:
        return [*self._meters.values()]

    @property
    def facts(self) -> dict[str, str]:
        """Where joules come from, or why there are none."""
        there = {fact: meter.source for fact, meter in self._meters.items()}
        if GPU in there and not self._on_gpu:
            there[GPU] += "; what is measured runs on the CPU, and the board only idles beside it"
        missing = {fact: f"{NONE}: {why}" for fact, why in self._missing.items()}
        return {fact: (there | missing)[fact] for fact in (CPU, GPU) if fact in there | missing}

    def begin(self) -> None:
        """Measure idle power; the next rounds are net of it."""
        self._before = self._idle()

    def end(self) -> dict[str, str]:
        """Measure idle power again; the fact that says both."""
        before, after = _sum(self._before), _sum(self._idle())
        if before is None or after is None:
            return {}
        self.same_idle = agree(before, after)
        differ = "" if self.same_idle else f": more than {AGREE:.0%} apart, net joules are uncertain"
        return {IDLE: f"{before:.1f} W before, {after:.1f} W after{differ}"}

    def start(self) -> None:
        for meter in self.meters:
            meter.start()

    def stop(self) -> Readings:
        told: Readings = {}
        for meter in reversed(self.meters):  # the last one to start is the first one to stop
            told |= meter.stop()
        windows, notes = self.windows, base.notes(self.windows)
        gross, above = base.total(windows), net(windows, self._before)
        if gross is not None and above is not None and above < -NOISE * gross:
            above = None
            notes.append("fewer joules than idling took before: the machine was not idle then")
        elif above is not None:
            above = max(above, 0.0)  # nothing above idling, as far as meters can tell
        measured: Readings = {
            "energy_j": gross,
            "energy_net_j": above,
            "idle_w": _sum(self._before),
            "energy_note": "; ".join(notes) or None,
        }
        return {key.name: (measured | told).get(key.name) for key in self.keys}

    @property
    def windows(self) -> tuple[Window, ...]:
        """What was measured last, of all meters."""
        return tuple(window for meter in self.meters for window in meter.windows)

    def close(self) -> None:
        for meter in self.meters:
            meter.close()

    def _idle(self) -> tuple[float | None, ...]:
        """Watts of everything that is measured, while nothing is done."""
        if not self.meters or not self._idle_s:
            return ()
        self.start()
        self._time.sleep(self._idle_s)
        self.stop()
        return tuple(window.watts for window in self.windows)


def opened(how: How, time: Time = SYSTEM) -> Energy:
    """With every meter that there is."""
    made: dict[str, Callable[[], JouleMeter]] = {
        CPU: lambda: rapl.opened(time=time),
        GPU: lambda: nvml.opened(how.gpus, time),
    }
    meters, missing = dict[str, JouleMeter](), dict[str, str]()
    for fact, make in made.items():
        try:
            meters[fact] = make()
        except NoMeter as why:
            missing[fact] = str(why)
    return Energy(meters, missing, how.idle_s, time, how.on_gpu)


def net(windows: Sequence[Window], idle: Sequence[float | None]) -> float | None:
    """Joules above idling; None: those of one window, or its idle power, are unknown."""
    if not windows or len(idle) != len(windows):
        return None
    above = 0.0
    for window, watts in zip(windows, idle, strict=True):
        if window.joules is None or watts is None:
            return None
        above += window.joules - watts * window.seconds
    return above


def agree(before: float, after: float) -> bool:
    """Whether idle power stayed the same."""
    return abs(before - after) <= AGREE * max(before, after)


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if values and len(known) == len(values) else None
