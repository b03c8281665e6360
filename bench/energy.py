"""Joules of training steps, in turns: A B A B ..., each in windows long enough for the meters.

A board is hotter, and burns more, after a minute than at the start: contestants take turns, a first round of
windows is dropped, and the median of the others counts. Idle power is measured before and after all windows;
net joules are there only if both agree.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from fl.errors import ConfigError, NoMeter
from fl.report.energy import UNKNOWN
from fl.run.meters.base import FEWEST
from fl.run.meters.energy import NONE, Energy, How, opened
from fl.run.meters.ticks import SYSTEM, Time
from fl.units import quantity
from sparsefl.bench import report
from sparsefl.bench.timing import Timing

Step = Callable[[], object]
SHORTEST_S = 10.0  # of a window
_COSTS = ("joules_per_step", "net_joules_per_step", "joules_per_sample", "net_joules_per_sample")
_PARTS = ("energy_cpu_j", "energy_dram_j", "energy_gpu_j")
_BOARDS = ("gpu_sm_mhz", "gpu_memory_mhz", "gpu_temperature_c", "gpu_throttled")
SHOWN = ("per_step", "net_per_step", "per_sample", "net_per_sample")  # the same as text


@dataclass(frozen=True, kw_only=True)
class Block:
    """One contestant's window."""

    steps: int
    seconds: float
    joules: float | None  # None: what was read cannot be trusted
    net: float | None
    note: str | None
    beside: dict[str, float | None]  # parts of joules, and what boards did


def check(meter: Energy, seconds: float, shortest: float = SHORTEST_S) -> None:
    """NoMeter: there is none. ConfigError: a window of so many seconds is too short for it."""
    if not meter.meters:
        raise NoMeter("; ".join(f"{fact}: {why}" for fact, why in meter.facts.items()))
    if not shortest <= seconds < float("inf"):
        raise ConfigError(f"--seconds: expected at least {shortest:g} per window, got {seconds:g}")
    period = max(one.period_s for one in meter.meters)
    if seconds < FEWEST * period:
        raise ConfigError(
            f"--seconds: expected at least {FEWEST * period:.3g}, which are {FEWEST} updates of the meter, "
            f"got {seconds:g}"
        )


def take_turns(
    contestants: Mapping[str, Step],
    meter: Energy,
    *,
    seconds: float,
    blocks: int,
    time: Time = SYSTEM,
) -> dict[str, list[Block]]:
    """`blocks` windows of each, in turns, after one that only warms up."""
    found: dict[str, list[Block]] = {name: [] for name in contestants}
    for number in range(blocks + 1):
        for name, step in contestants.items():
            block = window(step, meter, seconds, time)
            if number:
                found[name].append(block)
    return found


def window(step: Step, meter: Energy, seconds: float, time: Time = SYSTEM) -> Block:
    """As many steps as it takes to fill the window."""
    meter.start()
    began, steps = time.now(), 0
    while not steps or time.now() - began < seconds:
        step()
        steps += 1
    took = time.now() - began
    told = meter.stop()
    return Block(
        steps=steps,
        seconds=took,
        joules=told["energy_j"],
        net=told["energy_net_j"],
        note=told["energy_note"],
        beside={key: told[key] for key in (*_PARTS, *_BOARDS)},
    )


def figures(blocks: list[Block], batch: int, *, trusted: bool = True) -> dict[str, Any]:
    """Medians of a contestant's blocks, per step and per sample; spread is that of joules per step.

    `trusted`: idle power stayed the same, so that net joules mean something. A block without joules makes
    them unknown: the median of the others would be of other blocks.
    """
    gross = [_over(one.joules, one.steps) for one in blocks]
    net = [_over(one.net, one.steps) for one in blocks]
    per_step, net_per_step = _median(gross), _median(net) if trusted else None
    return {
        "blocks": len(blocks),
        "steps": sum(one.steps for one in blocks),
        "step_ms": 1e3 * median(one.seconds / one.steps for one in blocks) if blocks else None,
        "joules_per_step": per_step,
        "net_joules_per_step": net_per_step,
        "joules_per_sample": None if per_step is None else per_step / batch,
        "net_joules_per_sample": None if net_per_step is None else net_per_step / batch,
        "joules_spread": None if per_step is None else Timing(tuple(filter(None, gross))).spread,
        **{
            f"{key}_per_step": _median([_over(one.beside[key], one.steps) for one in blocks])
            for key in _PARTS
        },
        **{key: _median([one.beside[key] for one in blocks]) for key in _BOARDS},
        "energy_note": "; ".join(dict.fromkeys(one.note for one in blocks if one.note)) or None,
    }


def shown(figures: dict[str, Any], meter: Energy) -> dict[str, str]:
    """As text: with a unit, or the words where there are no joules."""
    absent = UNKNOWN if meter.meters else NONE
    texts = [absent if figures[key] is None else quantity(figures[key], "J") for key in _COSTS]
    return dict(zip(SHOWN, texts, strict=True))


class Session:
    """Meters for the length of a benchmark: idle power is measured as it begins and as it ends."""

    def __init__(self, how: How, seconds: float, *, needed: bool = True) -> None:
        """NoMeter: there is none, and one is `needed`. ConfigError: windows of that length are too short."""
        self.meter, self.seconds = opened(how), seconds
        self.facts = dict(self.meter.facts)
        try:
            if needed or self.meter.meters:
                check(self.meter, seconds)
        except Exception:
            self.meter.close()
            raise

    def __enter__(self) -> "Session":
        self.meter.begin()
        return self

    def tell(self) -> None:
        """Say where joules come from, or why there are none."""
        for fact, what in self.facts.items():
            report.console().print(f"{fact}: {what}", markup=False, highlight=False, soft_wrap=True)

    def columns(self, contestants: Mapping[str, Step], batch: int, blocks: int) -> dict[str, dict[str, Any]]:
        """The figures of every contestant, null without a meter. Net ones stand unless `ended` takes them."""
        found: dict[str, list[Block]] = dict.fromkeys(contestants, [])
        if self.meter.meters:
            found = take_turns(contestants, self.meter, seconds=self.seconds, blocks=blocks)
        told = {who: figures(some, batch) for who, some in found.items()}
        return {who: one | shown(one, self.meter) for who, one in told.items()}

    def ended(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """`rows` of `columns`, without net joules if idle power did not stay the same."""
        if self.end():
            return rows
        lost = {key: None for key in _COSTS if key.startswith("net")}
        return [row | lost | shown(row | lost, self.meter) if _COSTS[0] in row else row for row in rows]

    def __exit__(self, *_: object) -> None:
        self.meter.close()

    def end(self) -> bool:
        """After the last window: whether net joules mean something."""
        self.facts |= self.meter.end()
        return self.meter.same_idle


def _over(joules: float | None, steps: int) -> float | None:
    return None if joules is None else joules / steps


def _median(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if values and len(known) == len(values) else None
