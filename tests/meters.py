"""Meters whose joules are known beforehand."""

from fl.keys import Key
from fl.run.meters.base import Window
from fl.run.meters.energy import CPU, GPU, Energy


class Steady:
    """Windows of 2 s with these joules one after the other, the last for ever; None: they are unknown."""

    keys = (Key("energy_cpu_j", "fake", unit="J", kind="measured", null=True),)
    source, period_s = "a steady meter", 0.001

    def __init__(self, *joules, note=None):
        self.left, self.note, self.windows, self.log = list(joules), note, (), []

    def start(self):
        self.log.append("start")

    def stop(self):
        self.log.append("stop")
        joules = self.left.pop(0) if len(self.left) > 1 else self.left[0]
        notes = (self.note,) if self.note and joules is None else ()
        self.windows = (Window(joules, 2.0, notes),)
        return {"energy_cpu_j": joules}

    def close(self):
        self.log.append("close")


class NoSleep:
    """Idling takes no time."""

    def sleep(self, seconds):
        pass


def measuring(*joules, note=None):
    """What opens meters in place of fl.run.meters.energy.opened; the first two of `joules` are of idling
    before, then of rounds; idling after takes the last."""
    made = []

    def opened(how, time=None):
        made.append(Steady(*joules, note=note))
        return Energy({CPU: made[-1]}, {GPU: "no board"}, how.idle_s, NoSleep())

    opened.made = made
    return opened
