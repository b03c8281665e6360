"""The local executor: every task once, errors and interrupts stop all, threads where clients are few."""

import signal
import threading
import time

import pytest
import torch

from fl.run import setup
from fl.run.events import Listener
from fl.run.executor import Local
from fl.train.worker import Stopped
from sparsefl.kernels import native


@pytest.fixture(scope="module")
def setting(tiny):
    return setup.prepare(tiny())


def test_every_task_once_in_order(setting):
    with Local(setting, 3) as executor:
        done = executor.map(lambda worker, k, task: (k, task), {5: "a", 2: "b", 9: "c", 0: "d"})
        assert list(done.items()) == [(5, (5, "a")), (2, (2, "b")), (9, (9, "c")), (0, (0, "d"))]
        assert executor.map(lambda worker, k, task: k, {}) == {}


def test_reports_are_of_those_who_trained(setting):
    """A test of another model afterwards does not touch what was seen in training."""
    with Local(setting, 2) as executor:
        executor.map(
            lambda worker, k, start: worker.train(k, start, 0), dict.fromkeys([2, 0], setting.initial)
        )
        shares = executor.map(lambda w, k, model: w.test(k, model), dict.fromkeys(range(4), setting.initial))
        reports = executor.reports()
        assert sorted(reports) == [0, 2] and executor.reports() == {}
        assert all(report.samples == 40 and report.flop > 0 for report in reports.values())
        assert [reports[k].accuracy_before for k in (0, 2)] == [shares[0], shares[2]]
        assert reports[0].accuracy != shares[0]


def test_a_thread_keeps_its_worker(setting):
    with Local(setting, 2) as executor:
        meet = threading.Barrier(2, timeout=30)

        def who(worker, k, task):
            meet.wait()
            return threading.get_ident(), id(worker)

        pairs = {pair for _ in range(3) for pair in executor.map(who, {0: None, 1: None}).values()}
    assert len(pairs) == 2 == len({worker for _, worker in pairs})


@pytest.mark.parametrize(
    ("workers", "clients", "threads"), [(4, 1, 4), (4, 2, 2), (4, 3, 1), (4, 4, 1), (2, 1, 2), (1, 1, 1)]
)
def test_few_clients_share_the_threads(setting, workers, clients, threads):
    with Local(setting, workers) as executor:
        meet = threading.Barrier(clients, timeout=30)

        def count(worker, k, task):
            meet.wait()
            return native.num_threads(), torch.get_num_threads()

        assert set(executor.map(count, dict.fromkeys(range(clients))).values()) == {(threads, 1)}


def test_the_first_error_is_raised_and_the_others_stop(setting):
    started, stopped = [], []

    def work(worker, k, task):
        started.append(k)
        if k == 1:
            time.sleep(0.05)
            raise ValueError("client 1 has a problem")
        until = time.monotonic() + 30
        while time.monotonic() < until:
            if worker._stopped():
                stopped.append(k)
                raise Stopped
            time.sleep(0.001)

    with Local(setting, 2) as executor:
        with pytest.raises(ValueError, match="client 1 has a problem"):
            executor.map(work, dict.fromkeys(range(10)))
        assert stopped == [0] and sorted(started)[:2] == [0, 1] and len(started) == 2
        assert executor.map(lambda worker, k, task: k, {3: None}) == {3: 3}  # it can be used again


def test_an_interrupt_stops_the_workers(setting):
    entered = threading.Event()

    def work(worker, k, task):
        entered.set()
        while not worker._stopped():
            time.sleep(0.001)
        raise Stopped

    def interrupt():
        entered.wait(30)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    with Local(setting, 2) as executor:
        threading.Thread(target=interrupt).start()
        with pytest.raises(KeyboardInterrupt):
            executor.map(work, dict.fromkeys(range(5)))


def test_the_listener_hears(setting):
    heard = []

    class Ear(Listener):
        def wave_started(self, clients):
            heard.append(("wave", clients))

        def client_finished(self, k):
            heard.append(("client", k))

    with Local(setting, 1, Ear()) as executor:
        executor.map(lambda worker, k, task: k, {4: None, 1: None})
    assert heard == [("wave", 2), ("client", 4), ("client", 1)]


def test_refusals(setting):
    with pytest.raises(ValueError, match="at least 1 worker, got 0"):
        Local(setting, 0)
