"""The meter of packages and DRAM, on a fake powercap tree."""

import os

import pytest
from powercap import Powercap
from virtual_time import VirtualTime

from fl.errors import NoMeter
from fl.run.meters import rapl

LAPTOP = {"intel-rapl:0": ("package-0", 40), "intel-rapl:0:0": ("core", 30)}
SERVER = {
    "intel-rapl:0": ("package-0", 100),
    "intel-rapl:0:0": ("dram", 10),
    "intel-rapl:1": ("package-1", 150),
    "intel-rapl:1:0": ("dram", 20),
    "intel-rapl:1:1": ("uncore", 5),
    "intel-rapl:2": ("psys", 400),
}


@pytest.fixture
def time():
    return VirtualTime()


@pytest.fixture
def tree(tmp_path, time):
    def make(domains, **how):
        made = Powercap(tmp_path / "powercap", time, domains, **how)
        return made, rapl.opened(made.root, time, made.read)

    return make


def test_packages_and_dram_are_summed_over_sockets(tree, time):
    _, meter = tree(SERVER)
    meter.start()
    time.sleep(8)
    assert meter.stop() == pytest.approx({"energy_cpu_j": 2000, "energy_dram_j": 240})
    assert meter.windows[0][:2] == pytest.approx((2240, 8)) and meter.windows[0].notes == ()
    assert meter.source.startswith("RAPL through powercap: package-0, package-1; DRAM of 2; all processes")


def test_missing_dram_is_unknown_and_said(tree, time):
    _, meter = tree(LAPTOP)
    meter.start()
    time.sleep(2)
    assert meter.stop() == {"energy_cpu_j": pytest.approx(80), "energy_dram_j": None}
    assert meter.windows[0].joules == pytest.approx(80) and "no counter of DRAM" in meter.source


@pytest.mark.parametrize("seconds", [8.0, 100.0, 3000.0])
def test_counters_that_start_again(tree, time, seconds):
    """Several times in the longest window: 1000 J are full after 25 s."""
    _, meter = tree(LAPTOP, first=900, range_j=1000)
    meter.start()
    time.sleep(seconds)
    assert meter.stop()["energy_cpu_j"] == pytest.approx(40 * seconds)


def test_a_short_window_is_said_and_a_still_counter_is_not_zero(tree, time):
    fake, meter = tree(LAPTOP)
    meter.start()
    time.sleep(0.01)
    assert meter.stop()["energy_cpu_j"] == pytest.approx(0.4)
    assert meter.windows[0].notes == (
        "RAPL: fewer than 20 updates in the window, which makes its joules uncertain",
    )
    fake.stuck = True
    meter.start()
    time.sleep(1)
    assert meter.stop() == {"energy_cpu_j": None, "energy_dram_j": None}
    assert meter.windows[0].joules is None
    assert meter.windows[0].notes == ("RAPL: the counters of packages stand still",)


def test_a_counter_that_cannot_be_read_any_more(tree, time):
    fake, meter = tree(SERVER)
    meter.start()
    time.sleep(2)
    fake.denied = {"intel-rapl:1:0"}
    assert meter.stop() == {"energy_cpu_j": None, "energy_dram_j": None}
    assert "RAPL: a counter cannot be read any more" in meter.windows[0].notes[0]
    fake.denied = set()
    meter.start()
    time.sleep(2)
    assert meter.stop()["energy_cpu_j"] == pytest.approx(500)


def test_permission_denied_names_the_command(tmp_path, time):
    fake = Powercap(tmp_path, time, SERVER)
    fake.denied = {"intel-rapl:0"}
    with pytest.raises(NoMeter) as why:
        rapl.opened(tmp_path, time, fake.read)
    assert str(why.value) == (
        f"{tmp_path}/intel-rapl:0/energy_uj may be read by root alone; this lets everybody read it: "
        "sudo chmod a+r /sys/class/powercap/intel-rapl:*/energy_uj"
    )


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_permission_denied_by_the_kernel(tmp_path, time):
    Powercap(tmp_path, time, LAPTOP)
    (tmp_path / "intel-rapl:0" / "energy_uj").chmod(0)
    with pytest.raises(NoMeter, match="may be read by root alone"):
        rapl.opened(tmp_path)


def test_there_are_no_counters(tmp_path, time):
    with pytest.raises(NoMeter, match="nowhere has no counter intel-rapl: Linux offers none on most virtual"):
        rapl.opened(tmp_path / "nowhere")
    fake = Powercap(
        tmp_path / "cap", time, {"intel-rapl:0": ("psys", 9), "intel-rapl-mmio:0": ("package-0", 9)}
    )
    with pytest.raises(NoMeter, match="has no counter of a package"):
        rapl.opened(fake.root, time, fake.read)


def test_what_is_no_number(tmp_path, time):
    fake = Powercap(tmp_path, time, LAPTOP)
    (tmp_path / "intel-rapl:0" / "max_energy_range_uj").write_text("much")
    with pytest.raises(NoMeter, match="cannot be read: invalid literal"):
        rapl.opened(tmp_path, time, fake.read)


def test_real_files_and_a_real_thread(tmp_path):
    """The thread looks at counters while nobody asks: a range of 40 J is looked at every 10 ms."""
    time = VirtualTime()
    Powercap(tmp_path, time, LAPTOP, range_j=40)
    file = tmp_path / "intel-rapl:0" / "energy_uj"

    def put(text):  # at once: a reader finds the old or the new one
        (tmp_path / "new").write_text(text)
        (tmp_path / "new").replace(file)

    put("39000000")
    meter = rapl.opened(tmp_path)
    try:
        meter.start()
        first = meter._packages[0].joules()
        put("1000000")
        for _ in range(200):
            rapl.SYSTEM.sleep(0.01)
            if meter._packages[0]._wrapped:  # the thread saw it
                break
        put("39500000")
        assert meter._packages[0].joules() - first == pytest.approx(40.5)
        assert meter.stop()["energy_cpu_j"] == pytest.approx(40.5)
    finally:
        meter.close()
