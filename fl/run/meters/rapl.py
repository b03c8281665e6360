"""Joules of processors and their memory, by RAPL: Linux shows its counters below /sys/class/powercap.

    intel-rapl:0/{name: package-0, energy_uj, max_energy_range_uj}      one per socket, AMD's too
    intel-rapl:0:1/{name: dram, ...}                                    where the processor has such a counter

Packages and DRAM are summed over sockets. Counters start again at 0 beyond their range: they are read often
enough that none does so twice unseen. Other domains are parts of these (core, uncore) or hold them (psys).
Counters are those of the machine: everything that runs on it is in them.
"""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from fl.errors import NoMeter
from fl.keys import Key
from fl.run.meters.base import FEWEST, Readings, Window
from fl.run.meters.ticks import SYSTEM, Time

ROOT = Path("/sys/class/powercap")
PERIOD_S = 0.001  # between updates, by Intel's manual
_MOST_W = 1000.0  # of one domain
_LOOK_S = 10.0  # at most, between looks at a counter
_STILL_S = 1.0  # a package that burns nothing for so long is not measured
_PACKAGE, _DRAM = "package", "dram"
HELP = "sudo chmod a+r /sys/class/powercap/intel-rapl:*/energy_uj"

Read = Callable[[Path], str]


class Domain:
    """One counter, with what it lost at the end of its range added."""

    def __init__(self, folder: Path, read: Read) -> None:
        self._file, self._read = folder / "energy_uj", read
        self.name = read(folder / "name").strip()
        self.range_j = int(read(folder / "max_energy_range_uj")) / 1e6
        self._last, self._wrapped, self._lock = self._now(), 0.0, threading.Lock()

    def joules(self) -> float:
        with self._lock:
            now = self._now()
            if now < self._last:
                self._wrapped += self.range_j
            self._last = now
            return self._wrapped + now

    def _now(self) -> float:
        return int(self._read(self._file)) / 1e6


class Rapl:
    """The machine's packages and their DRAM."""

    keys: ClassVar[tuple[Key, ...]] = (
        Key("energy_cpu_j", "processor packages, whole machine", unit="J", kind="measured", null=True),
        Key(
            "energy_dram_j",
            "memory, whole machine; null where the processor has no counter of it",
            unit="J",
            kind="measured",
            null=True,
        ),
    )
    period_s = PERIOD_S

    def __init__(self, packages: list[Domain], dram: list[Domain], time: Time = SYSTEM) -> None:
        self._packages, self._dram, self._time = packages, dram, time
        named = ", ".join(domain.name for domain in packages)
        memory = f"DRAM of {len(dram)}" if dram else "no counter of DRAM"
        self.source = f"RAPL through powercap: {named}; {memory}; all processes of the machine"
        self.windows: tuple[Window, ...] = ()
        shortest = min(domain.range_j for domain in (*packages, *dram))
        self._failure: str | None = None
        self._end = time.every(min(_LOOK_S, shortest / _MOST_W / 4), self._look)
        self._at, self._before = time.now(), (0.0, 0.0)

    def start(self) -> None:
        self._failure = None
        self._at, self._before = self._time.now(), self._joules()

    def stop(self) -> Readings:
        after, seconds = self._joules(), self._time.now() - self._at
        package, dram = (b - a for a, b in zip(self._before, after, strict=True))
        said = self._failure
        if said is None and package <= 0 and seconds >= _STILL_S:
            said = "the counters of packages stand still"
        if said is not None:
            self.windows = (Window(None, seconds, (f"RAPL: {said}",)),)
            return {"energy_cpu_j": None, "energy_dram_j": None}
        few = f"RAPL: fewer than {FEWEST} updates in the window, which makes its joules uncertain"
        notes = (few,) if seconds < FEWEST * PERIOD_S else ()
        self.windows = (Window(package + dram, seconds, notes),)
        return {"energy_cpu_j": package, "energy_dram_j": dram if self._dram else None}

    def close(self) -> None:
        self._end()

    def _joules(self) -> tuple[float, float]:
        try:
            return sum(one.joules() for one in self._packages), sum(one.joules() for one in self._dram)
        except (OSError, ValueError) as wrong:
            self._failure = f"a counter cannot be read any more: {wrong}"
            return 0.0, 0.0

    def _look(self) -> None:
        self._joules()


def opened(root: Path | None = None, time: Time = SYSTEM, read: Read = Path.read_text) -> Rapl:
    """The counters below `root`. NoMeter: why there are none."""
    root = root or ROOT
    folders = sorted(folder for folder in root.glob("intel-rapl:*") if (folder / "name").is_file())
    if not folders:
        raise NoMeter(
            f"{root} has no counter intel-rapl: Linux offers none on most virtual machines and in many "
            "containers, or its module intel_rapl_msr is not loaded"
        )
    found: dict[str, list[Domain]] = {_PACKAGE: [], _DRAM: []}
    for folder in folders:
        try:
            kind = read(folder / "name").strip().split("-")[0]
            if kind in found:
                found[kind].append(Domain(folder, read))
        except PermissionError:
            raise NoMeter(
                f"{folder / 'energy_uj'} may be read by root alone; this lets everybody read it: {HELP}"
            ) from None
        except (OSError, ValueError) as wrong:
            raise NoMeter(f"{folder} cannot be read: {wrong}") from None
    if not found[_PACKAGE]:
        raise NoMeter(f"{root} has no counter of a package")
    return Rapl(found[_PACKAGE], found[_DRAM], time)
