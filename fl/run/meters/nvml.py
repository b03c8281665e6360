"""Joules of NVIDIA boards, by NVML (fl/run/meters/board.py).

The source is probed when the meter is made, and named in every result:

    the total-energy counter    read where it moves (fl/run/meters/counter.py), after the board has finished
    else instant power          50 times per second, integrated (fl/run/meters/power.py)
    else an error

Both are board power by the board's own sensor, of all processes on it. Beside joules stand clocks, heat and
the share of looks at which clocks were lowered. A window that cannot be trusted has no joules: the counter
stood still, went back, or NVML stopped answering.
"""

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import ClassVar

from fl.errors import NoMeter
from fl.keys import Key
from fl.run.meters import base, power
from fl.run.meters.base import FEWEST, Readings, Window
from fl.run.meters.board import Board, State, library
from fl.run.meters.counter import Counter, Edge
from fl.run.meters.ticks import SYSTEM, Time
from fl.run.meters.watch import POLL_S, Seen, Watch

STILL_S = 1.0  # a counter that does not move for so long stands still
APART = 0.05  # counter against integrated power, beyond which they disagree
_LOST = 5  # polls without a sample, beyond which some were lost


class BoardMeter:
    """One board. `settle` returns when it has done what this process asked of it; None: that is nothing."""

    def __init__(self, board: Board, time: Time = SYSTEM, settle: Callable[[], None] | None = None) -> None:
        """NoMeter: the board tells neither joules nor watts."""
        self.board, self._time, self._ours = board, time, settle is not None
        self._settle = settle or (lambda: None)
        self._counter: Counter | None = None
        self.period_s, self.how = self._probed()
        self._still_s = max(STILL_S, FEWEST * self.period_s)
        self._watch = Watch(board, time)
        self._begin: Edge | None = None

    def _probed(self) -> tuple[float, str]:
        """Seconds between updates, and the source in words."""
        missing = "the board has no energy counter"
        if self.board.joules() is not None:
            missing = "its energy counter stands still or goes back"
            counter = Counter(self._joules, self._time)
            period = counter.period(STILL_S)
            if period is not None:
                self._counter = counter
                return period, f"total-energy counter, updated every {1e3 * period:.0f} ms"
        if self.board.power() is None:
            raise NoMeter(f"{self.board.name}: {missing}, and NVML tells no instant power of it")
        stamps = Counter(self._stamp, self._time).period(STILL_S)
        return stamps or POLL_S, f"instant power, integrated at {1 / POLL_S:.0f} Hz ({missing})"

    def start(self) -> None:
        self._settle()
        self._begin = self._edge()
        self._watch.begin()

    def stop(self) -> tuple[Window, list[State]]:
        self._settle()
        end = self._edge()
        self._watch.poll()
        seen, begin = self._watch.seen(), self._begin
        if begin is None or end is None:
            why = seen.failure or "the energy counter stands still"
            return Window(None, 0.0, (self._says(why),)), seen.states
        seconds, integral = end.at - begin.at, power.joules(seen.samples, begin.at, end.at)
        joules = integral if self._counter is None else end.joules - begin.joules
        wrong = self._wrong(seen, joules)
        if wrong is not None:
            return Window(None, seconds, (self._says(wrong),)), seen.states
        return Window(joules, seconds, self._notes(seen, begin, end, joules, integral)), seen.states

    def close(self) -> None:
        self._watch.close()

    def updates(self, seconds: float) -> int:
        """Of what is read, in a window."""
        return round(seconds / self.period_s)

    def _edge(self) -> Edge | None:
        """Where the counter moves next; without a counter, now."""
        if self._counter is None:
            return Edge(self._time.now(), 0.0)
        try:
            return self._counter.edge(self._still_s)
        except self.board.lost:
            return None

    def _wrong(self, seen: Seen, joules: float | None) -> str | None:
        """Why a window has no joules."""
        if seen.failure is not None:
            return seen.failure
        if joules is None:
            return "NVML told no power"
        if self._counter is not None and (seen.went_back or joules < 0):
            return "the energy counter went back: was the driver loaded anew?"
        if self._counter is not None and seen.still_s > self._still_s:
            return f"the energy counter stood still for {seen.still_s:.1f} s"
        return None

    def _notes(
        self, seen: Seen, begin: Edge, end: Edge, joules: float | None, integral: float | None
    ) -> tuple[str, ...]:
        seconds, said = end.at - begin.at, list[str]()
        if self.updates(seconds) < FEWEST:
            said.append(
                f"fewer than {FEWEST} updates in the window: joules are uncertain, and gross ones include "
                "waiting for an update"
            )
        elif self._counter is not None:
            said += _disagreement(joules, integral)
        gap = power.longest_gap(seen.samples, begin.at, end.at)
        if self._counter is None and gap > max(_LOST * POLL_S, 2 * self.period_s):
            said.append("polls of its power were lost, which makes its joules uncertain")
        reasons = dict.fromkeys(reason for state in seen.states for reason in state.throttled or ())
        if reasons:
            said.append(f"clocks were lowered: {', '.join(reasons)}")
        if self.board.others(self._ours):
            said.append("other processes compute on it too, and nobody can tell their joules from ours")
        return tuple(map(self._says, said))

    def _says(self, text: str) -> str:
        return f"{self.board.name}: {text}"

    def _joules(self) -> float:
        return self.board.joules() or 0.0

    def _stamp(self) -> float:
        found = self.board.power()
        return 0.0 if found is None else found.stamp


class Nvml:
    """Boards together."""

    keys: ClassVar[tuple[Key, ...]] = (
        Key("energy_gpu_j", "GPU boards, all processes on them", unit="J", kind="measured", null=True),
        Key("gpu_sm_mhz", "clock of GPU cores, mean", unit="MHz", kind="measured", null=True),
        Key("gpu_memory_mhz", "clock of GPU memory, mean", unit="MHz", kind="measured", null=True),
        Key("gpu_temperature_c", "hottest GPU", unit="C", kind="measured", null=True),
        Key(
            "gpu_throttled",
            "looks at GPUs, one per second, at which power, heat or the hardware kept clocks down",
            unit="share",
            kind="measured",
            null=True,
        ),
    )

    def __init__(self, boards: Sequence[BoardMeter]) -> None:
        self.boards = [*boards]
        self.windows: tuple[Window, ...] = ()
        self.source = "; ".join(map(_named, self.boards))
        self.period_s = max(one.period_s for one in self.boards)

    def start(self) -> None:
        for one in self.boards:
            one.start()

    def stop(self) -> Readings:
        told = [one.stop() for one in reversed(self.boards)][::-1]
        self.windows = tuple(window for window, _ in told)
        states = [state for _, some in told for state in some]
        looks = [bool(state.throttled) for state in states if state.throttled is not None]
        heat = [state.temperature_c for state in states if state.temperature_c is not None]
        return {
            "energy_gpu_j": base.total(self.windows),
            "gpu_sm_mhz": _mean([state.sm_mhz for state in states]),
            "gpu_memory_mhz": _mean([state.memory_mhz for state in states]),
            "gpu_temperature_c": max(heat, default=None),
            "gpu_throttled": _mean(looks),
        }

    def close(self) -> None:
        for one in self.boards:
            one.close()


def opened(uuids: Sequence[str] = (), time: Time = SYSTEM) -> Nvml:
    """The boards of these UUIDs; without any, of the CUDA devices that torch sees. NoMeter: there is none."""
    seen = _of_torch()
    if not uuids and not seen:
        raise NoMeter("torch sees no CUDA device")
    nvml, meters = library(), list[BoardMeter]()
    try:
        for uuid in uuids or seen:
            settle = _settling(seen[uuid]) if uuid in seen else None
            meters.append(BoardMeter(Board(nvml, uuid), time, settle))
        return Nvml(meters)
    except (NoMeter, nvml.NVMLError) as wrong:
        for one in meters:
            one.close()
        raise wrong if isinstance(wrong, NoMeter) else NoMeter(f"NVML does not answer: {wrong}") from None


def _of_torch() -> dict[str, int]:
    """UUID of every CUDA device that torch sees, and its number there: CUDA_VISIBLE_DEVICES reorders them."""
    import torch  # here: a process that only measures does without

    number = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return {f"GPU-{torch.cuda.get_device_properties(i).uuid}": i for i in range(number)}


def _settling(device: int) -> Callable[[], None]:
    """Make the context of a device, whose idle power is another without; return what waits for it."""
    import torch

    torch.empty(1, device=f"cuda:{device}")
    return lambda: torch.cuda.synchronize(device)


def _disagreement(joules: float | None, integral: float | None) -> list[str]:
    if joules is None or integral is None or abs(joules - integral) <= APART * integral:
        return []
    return [f"its counter says {joules:.4g} J, its power {integral:.4g} J: more than {APART:.0%} apart"]


def _named(one: BoardMeter) -> str:
    limit = one.board.limit_w()
    capped = "" if limit is None else f", limit {limit:.0f} W"
    return f"NVML, {one.how}: {one.board.name} {one.board.uuid}, driver {one.board.driver()}{capped}"


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
