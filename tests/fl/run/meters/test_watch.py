"""What is polled from a board: samples on the driver's stamps, a counter that is watched, and errors."""

import pytest
from virtual_time import VirtualTime

from fl.run.meters.board import Power, State
from fl.run.meters.watch import POLL_S, Watch


class Lost(Exception):
    pass


class Board:
    lost = Lost

    def __init__(self, time):
        self.time, self.stamp, self.counter, self.broken = time, None, None, False

    def power(self):
        if self.broken:
            raise Lost("gone")
        return Power(100.0, self.time.epoch() if self.stamp is None else self.stamp)

    def joules(self):
        return self.counter

    def state(self):
        return State(1.0, 2.0, 3.0, ())


class Drifting(VirtualTime):
    """The time of day runs slow against what only goes forward, as while it is being set."""

    def epoch(self):
        return self.now() - 1e-4 * (self.now() - 1.7e9)


@pytest.fixture
def time():
    return Drifting()


@pytest.fixture
def board(time):
    return Board(time)


def test_a_value_that_is_read_again_is_one_sample(time, board):
    watch = Watch(board, time)
    time.sleep(1)
    board.stamp = time.epoch()
    watch.begin()
    time.sleep(10 * POLL_S)
    assert len(watch.seen().samples) <= 2  # the last one before, and this one
    board.stamp = time.epoch()
    time.sleep(10 * POLL_S)
    assert len(watch.seen().samples) <= 3
    watch.close()


@pytest.mark.parametrize("stamp", [0.0, 9e9])
def test_stamps_of_another_clock_are_not_used(time, board, stamp):
    board.stamp = stamp
    watch = Watch(board, time)
    began = time.now()
    time.sleep(10.5 * POLL_S)
    at = [sample.at for sample in watch.seen().samples]
    assert len(at) == 10 and at[0] == pytest.approx(began + POLL_S)
    watch.close()
    time.sleep(1)
    assert len(watch.seen().samples) == 10  # nobody polls any more


def test_the_counter_is_watched(time, board):
    board.counter = 5.0
    watch = Watch(board, time)
    watch.begin()
    time.sleep(0.5)
    seen = watch.seen()
    assert seen.still_s == pytest.approx(0.5, abs=2 * POLL_S) and not seen.went_back
    board.counter = 6.0
    time.sleep(0.1)
    board.counter = 5.5
    time.sleep(0.1)
    board.counter = 7.0  # above where it was: only who looked in between knows
    time.sleep(0.1)
    assert watch.seen().went_back
    watch.begin()
    assert not watch.seen().went_back and watch.seen().still_s == 0


def test_an_error_is_kept_until_the_next_window(time, board):
    watch = Watch(board, time)
    board.broken = True
    time.sleep(POLL_S)
    board.broken = False
    time.sleep(1)
    assert watch.seen().failure == "NVML stopped answering: gone"
    assert len(watch.seen().states) == 1  # one per second
    watch.begin()
    assert watch.seen().failure is None
