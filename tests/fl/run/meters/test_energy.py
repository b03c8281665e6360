"""Joules of several meters together, net of idle power."""

import pytest
from virtual_time import VirtualTime

from fl.keys import Key
from fl.run.meters import base, counter, energy, power
from fl.run.meters.base import Window
from fl.run.meters.energy import CPU, GPU, IDLE, Energy
from fl.run.meters.power import Sample


class Fake:
    """A meter that burns `watts` (or, where it is None, cannot say)."""

    keys = (Key("energy_cpu_j", "fake", unit="J", kind="measured", null=True),)
    source, period_s = "a fake", 0.001

    def __init__(self, time, watts, note=()):
        self.time, self.watts, self.note, self.windows, self.open = time, watts, note, (), True

    def start(self):
        self.began = self.time.now()

    def stop(self):
        seconds = self.time.now() - self.began
        joules = None if self.watts is None else self.watts * seconds
        self.windows = (Window(joules, seconds, self.note),)
        return {"energy_cpu_j": joules}

    def close(self):
        self.open = False


@pytest.fixture
def time():
    return VirtualTime()


def test_gross_and_net(time):
    cpu, gpu = Fake(time, 10), Fake(time, 20)
    meters = Energy({CPU: cpu, GPU: gpu}, {}, 5, time)
    meters.begin()
    cpu.watts, gpu.watts = 50, 220
    meters.start()
    time.sleep(4)
    told = meters.stop()
    assert [*told] == [key.name for key in Energy.keys]
    assert told["energy_j"] == pytest.approx(270 * 4) and told["energy_net_j"] == pytest.approx(240 * 4)
    assert told["idle_w"] == pytest.approx(30) and told["energy_note"] is None
    assert told["energy_gpu_j"] is None  # no such meter
    cpu.watts, gpu.watts = 10, 21
    assert meters.end() == {IDLE: "30.0 W before, 31.0 W after"}
    gpu.watts = 40
    assert meters.end()[IDLE].endswith("50.0 W after: more than 10% apart, net joules are uncertain")
    meters.close()
    assert not cpu.open and not gpu.open


def test_unknown_is_never_zero(time):
    broken = Fake(time, None, ("it broke",))
    meters = Energy({CPU: Fake(time, 10), GPU: broken}, {}, 5, time)
    meters.begin()
    meters.start()
    time.sleep(1)
    told = meters.stop()
    assert told["energy_j"] is told["energy_net_j"] is told["idle_w"] is None
    assert told["energy_note"] == "it broke" and meters.end() == {}


def test_without_idling_net_is_unknown(time):
    meters = Energy({CPU: Fake(time, 10)}, {}, 0, time)
    meters.begin()
    meters.start()
    time.sleep(2)
    told = meters.stop()
    assert told["energy_j"] == pytest.approx(20) and told["energy_net_j"] is None and told["idle_w"] is None


def test_less_than_idling_is_said(time):
    cpu = Fake(time, 30)
    meters = Energy({CPU: cpu}, {}, 5, time)
    meters.begin()
    cpu.watts = 20
    meters.start()
    time.sleep(2)
    told = meters.stop()
    assert told["energy_j"] == pytest.approx(40) and told["energy_net_j"] is None
    assert "the machine was not idle then" in told["energy_note"]


def test_no_meter_at_all(time):
    meters = Energy({}, {CPU: "no file", GPU: "no library"}, 5, time)
    before = time.now()
    meters.begin()
    meters.start()
    assert set(meters.stop().values()) == {None} and meters.end() == {}
    assert time.now() == before  # nobody waits for nothing
    assert meters.facts == {CPU: "no meter: no file", GPU: "no meter: no library"}


def test_what_this_machine_has_is_told_in_a_sentence():
    meters = energy.opened(energy.How(gpus=("GPU-none",)))
    try:
        assert [*meters.facts] == [CPU, GPU] or [*meters.facts] == [GPU, CPU]
        assert meters.facts[GPU].startswith("no meter: ")
    finally:
        meters.close()


def test_totals_and_notes():
    known, other = Window(3.0, 1.0, ("a", "b")), Window(4.0, 2.0, ("a",))
    assert base.total((known, other)) == 7 and base.notes((known, other)) == ["a", "b"]
    assert base.total((known, Window(None, 1.0))) is None and base.total(()) is None
    assert other.watts == 2 and Window(None, 0.0).watts is None


def test_the_area_below_power():
    line = [Sample(0, 100), Sample(1, 100), Sample(3, 300)]
    assert power.joules(line, 0, 3) == 100 + 400
    assert power.joules(line, 0.5, 2) == 50 + 150
    assert power.joules(line, 3, 5) == 600 and power.joules(line, -2, 0) == 200
    assert power.joules([], 0, 1) is None and power.joules(line[:1], 5, 7) == 200
    assert power.longest_gap(line, 0, 4) == 2 and power.longest_gap([], 0, 4) == 4


class Stepping:
    """A counter of 100 W that is updated every 50 ms, until it stops or goes back."""

    def __init__(self, time, until=1e9, back=1e9):
        self.time, self.born, self.until, self.back = time, time.now(), until, back

    def __call__(self):
        ticks = int(min(self.time.now() - self.born, self.until) / 0.05)
        return 5.0 * ticks - (1000 if ticks * 0.05 > self.back else 0)


def test_edges_of_a_counter(time):
    made = counter.Counter(Stepping(time), time)
    assert made.period(1.0) == pytest.approx(0.05, abs=0.0006)
    a = made.edge(1.0)
    time.sleep(0.26)
    b = made.edge(1.0)
    assert (b.joules - a.joules) / (b.at - a.at) == pytest.approx(100, rel=0.01)
    assert counter.Counter(Stepping(time, until=0), time).edge(1.0) is None
    assert counter.Counter(Stepping(time, until=0.2), time).period(1.0) is None
    assert counter.Counter(Stepping(time, back=0.2), time).period(1.0) is None
