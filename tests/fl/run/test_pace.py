"""Clients per second, and what is left of a round: by a clock of our own."""

from threading import Thread

from hypothesis import given
from hypothesis import strategies as st

from fl.run.pace import Pace


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def made(memory=3_100_000_000):
    clock = Clock()
    return Pace(clock, lambda: memory), clock


def test_by_hand():
    pace, clock = made()
    pace.round_started(100_000)
    assert pace.rate is pace.left is None and pace.total == 100_000
    pace.wave_started(60_000)
    assert pace.text() == "wave 1, 60,000 clients  memory 3.1 GB"
    for _ in range(20_000):
        pace.client_done(1e9)
    clock.now += 10
    assert (pace.rate, pace.left) == (2000, 40)
    assert pace.text() == "wave 1, 60,000 clients  2,000 clients/s  round left 40 s  memory 3.1 GB"
    pace.wave_started(40_000)
    clock.now += 90
    assert pace.text() == "wave 2, 40,000 clients  200 clients/s  round left 6 min 40 s  memory 3.1 GB"
    pace.round_started(5)
    assert (pace.waves, pace.done, pace.total) == (0, 0, 5)


def test_more_are_asked_than_there_are_clients():
    """A server's: ten train, then all are tested."""
    pace, _ = made(memory=None)
    pace.round_started(100)
    pace.wave_started(10)
    assert pace.total == 100
    pace.wave_started(100)
    assert pace.total == 110 and pace.text() == "wave 2, 100 clients"


def test_it_is_time_once_in_a_while():
    pace, clock = made()
    told = []
    for _ in range(100):
        clock.now += 1
        told.append(pace.client_done(30))
    assert [i for i, one in enumerate(told, start=1) if one] == [30, 60, 90]


def test_workers_lose_no_client():
    pace, _ = made()
    threads = [Thread(target=lambda: [pace.client_done(1e9) for _ in range(5000)]) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert pace.done == 20_000


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.floats(1e-3, 1e6))
def test_rate_and_time_left_fit_together(total, done, seconds):
    pace, clock = made()
    pace.round_started(max(total, done))
    pace.done = done
    clock.now += seconds
    assert pace.left >= 0 and abs(pace.rate * pace.left - (pace.total - done)) <= 1e-6 * pace.total
    assert "clients/s" in pace.text() and "round left" in pace.text()
