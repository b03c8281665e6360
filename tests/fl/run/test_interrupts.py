"""Interrupts that wait."""

import os
import signal
import threading

import pytest

from fl.run.interrupts import held


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_waits_for_the_end(number):
    before, done = signal.signal(number, signal.default_int_handler), []
    try:
        with pytest.raises(KeyboardInterrupt), held():
            os.kill(os.getpid(), number)
            done.append("all of it")
        assert done == ["all of it"] and signal.getsignal(number) is signal.default_int_handler
        with held():
            pass
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
            signal.pause()
    finally:
        signal.signal(number, before)


def test_other_threads_are_left_alone():
    before, found = signal.getsignal(signal.SIGINT), []

    def work():
        with held():
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [before]
