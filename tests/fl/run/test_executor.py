"""The local executor: every task once, errors and interrupts stop all, threads where clients are few."""

import signal
import sys
import threading
import time
from importlib.metadata import EntryPoint

import pytest
import torch

from fl.config import code
from fl.errors import ConfigError, Stopped
from fl.run import executor, runs, setup
from fl.run.events import Listener
from fl.run.executor import Threads
from fl.run.runs import Options
from fl.train.local import Local
from fl.train.report import Done
from fl.train.work import collect
from sparsefl.kernels import native


@pytest.fixture(scope="module")
def setting(tiny):
    return setup.prepare(tiny())


def values(executor, function, tasks):
    """{k: function(worker, k, task)}"""
    return collect(executor, lambda *given: Done(function(*given), None), tasks).values


def test_every_task_once_in_order(setting):
    with Threads(setting, 3) as executor:
        done = values(executor, lambda worker, k, task: (k, task), {5: "a", 2: "b", 9: "c", 0: "d"})
        assert list(done.items()) == [(5, (5, "a")), (2, (2, "b")), (9, (9, "c")), (0, (0, "d"))]
        assert values(executor, lambda worker, k, task: k, {}) == {}


def test_outcomes_come_as_clients_finish(setting):
    """The first client waits until the outcome of the second has been taken."""
    taken = threading.Event()

    def work(worker, k, task):
        assert k == 1 or taken.wait(30)
        return Done(task, None)

    with Threads(setting, 2) as executor:
        order = []
        for outcome in executor.run(work, {0: "slow", 1: "fast"}):
            order.append((outcome.k, outcome.value))
            taken.set()
    assert order == [(1, "fast"), (0, "slow")]


def test_who_leaves_early_stops_the_others(setting):
    """A loop over outcomes that ends before the last."""
    stopped = []

    def work(worker, k, task):
        if k:
            while not worker._stop.is_set():
                time.sleep(0.001)
            stopped.append(k)
            raise Stopped
        return Done(k, None)

    with Threads(setting, 2) as executor:
        outcomes = executor.run(work, dict.fromkeys(range(6)))
        assert next(outcomes).k == 0
        outcomes.close()
        assert len(stopped) <= 2 and values(executor, lambda worker, k, task: k, {3: None}) == {3: 3}


def test_reports_come_with_the_values(setting):
    """Of those who trained: a task that only tested has none."""

    def train(worker, k, start):
        turn = worker.turn(k, 0, start)
        return Done(k, turn.train(Local.of(setting.training, 0)))

    def test(worker, k, model):
        return Done(worker.turn(k, 0, model).test(), None)

    with Threads(setting, 2) as executor:
        trained = collect(executor, train, dict.fromkeys([2, 0], setting.initial))
        tested = collect(executor, test, dict.fromkeys(range(4), setting.initial))
    assert [*trained.reports] == [*trained.values] == [2, 0]
    assert all(report.samples == 40 and report.flop > 0 for report in trained.reports.values())
    assert tested.reports == {} and all(0 <= share <= 1 for share in tested.values.values())


def test_a_thread_keeps_its_worker(setting):
    with Threads(setting, 2) as executor:
        meet = threading.Barrier(2, timeout=30)

        def who(worker, k, task):
            meet.wait()
            return threading.get_ident(), id(worker)

        pairs = {pair for _ in range(3) for pair in values(executor, who, {0: None, 1: None}).values()}
    assert len(pairs) == 2 == len({worker for _, worker in pairs})


@pytest.mark.parametrize(
    ("workers", "clients", "threads"), [(4, 1, 4), (4, 2, 2), (4, 3, 1), (4, 4, 1), (2, 1, 2), (1, 1, 1)]
)
def test_few_clients_share_the_threads(setting, workers, clients, threads):
    with Threads(setting, workers) as executor:
        meet = threading.Barrier(clients, timeout=30)

        def count(worker, k, task):
            meet.wait()
            return native.num_threads(), torch.get_num_threads()

        assert set(values(executor, count, dict.fromkeys(range(clients))).values()) == {(threads, 1)}


def test_the_first_error_is_raised_and_the_others_stop(setting):
    started, stopped = [], []

    def work(worker, k, task):
        started.append(k)
        if k == 1:
            time.sleep(0.05)
            raise ValueError("client 1 has a problem")
        until = time.monotonic() + 30
        while time.monotonic() < until:
            if worker._stop.is_set():
                stopped.append(k)
                raise Stopped
            time.sleep(0.001)

    with Threads(setting, 2) as executor:
        with pytest.raises(ValueError, match="client 1 has a problem"):
            values(executor, work, dict.fromkeys(range(10)))
        assert stopped == [0] and sorted(started)[:2] == [0, 1] and len(started) == 2
        assert values(executor, lambda worker, k, task: k, {3: None}) == {3: 3}  # it can be used again


def test_an_interrupt_stops_the_workers(setting):
    entered = threading.Event()

    def work(worker, k, task):
        entered.set()
        while not worker._stop.is_set():
            time.sleep(0.001)
        raise Stopped

    def interrupt():
        entered.wait(30)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    with Threads(setting, 2) as executor:
        threading.Thread(target=interrupt).start()
        with pytest.raises(KeyboardInterrupt):
            values(executor, work, dict.fromkeys(range(5)))


def test_the_listener_hears(setting):
    heard = []

    class Ear(Listener):
        def wave_started(self, clients):
            heard.append(("wave", clients))

        def client_finished(self, k):
            heard.append(("client", k))

    with Threads(setting, 1, Ear()) as executor:
        values(executor, lambda worker, k, task: k, {4: None, 1: None})
    assert heard == [("wave", 2), ("client", 4), ("client", 1)]


@pytest.mark.parametrize("fails", [False, True])
def test_workers_switch_often_only_while_they_work(setting, fails):
    usual, seen = sys.getswitchinterval(), []

    def work(worker, k, task):
        seen.append(sys.getswitchinterval())
        if fails:
            raise ValueError("no")

    for workers in (1, 2):
        with Threads(setting, workers) as executor:
            if fails:
                with pytest.raises(ValueError, match="no"):
                    values(executor, work, {0: None, 1: None})
            else:
                values(executor, work, {0: None, 1: None})
            assert sys.getswitchinterval() == usual
    assert seen[0] == usual and seen[-1] < usual / 2


def test_refusals(setting):
    with pytest.raises(ValueError, match="at least 1 worker, got 0"):
        Threads(setting, 0)


def test_executors_by_name():
    assert executor.names() == ["local", "ray"] and executor.find("local") is Threads
    with pytest.raises(ConfigError, match=r"^executor: expected one of \['local', 'ray'\], got 'cloud'$"):
        executor.find("cloud")
    with pytest.raises(ConfigError, match="^--executor: .*'locla'; did you mean 'local'"):
        executor.find("locla", "--executor")


def test_an_unknown_executor_writes_nothing(tiny, tmp_path):
    with pytest.raises(ConfigError, match="executor: expected one of"):
        runs.start(tiny(), tmp_path / "run", Options(executor="cloud"))
    assert not (tmp_path / "run").exists()


def test_a_package_brings_an_executor(monkeypatch, tmp_path, tiny, same_results):
    """It makes the pool of the run, which is closed when the run ends."""
    (tmp_path / "fake_pools.py").write_text(
        "from fl.run.executor import Threads\n"
        "made, closed = [], []\n"
        "class Pool(Threads):\n"
        "    def __init__(self, setting, workers, listener):\n"
        "        made.append(workers)\n"
        "        super().__init__(setting, workers, listener)\n"
        "    def close(self):\n"
        "        closed.append(1)\n"
        "        super().close()\n"
    )
    point = EntryPoint("pool", "fake_pools:Pool", "sparsefl.executors")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(code, "entry_points", lambda group: [point] if group == point.group else [])
    code.installed.cache_clear()
    try:
        assert executor.names() == ["local", "ray", "pool"]
        cfg = tiny("num_rounds=1")
        runs.start(cfg, tmp_path / "theirs", Options(workers=2, executor="pool"))
        import fake_pools

        assert fake_pools.made == [2] and fake_pools.closed == [1]
        runs.start(cfg, tmp_path / "ours", Options(workers=2))
        same_results(tmp_path / "ours", tmp_path / "theirs")
    finally:
        code.installed.cache_clear()


class Few:
    """Work that can be done for several clients at once."""

    def __init__(self):
        self.seen = []

    def __call__(self, trainer, k, task):
        raise AssertionError("expected `many`, got one client")

    def many(self, trainer, tasks):
        self.seen.append(list(tasks))
        return {k: Done(10 * task, None) for k, task in tasks.items()}


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("clients", [1, 5, 40, 500])
def test_work_for_several_is_handed_out_in_parts(setting, workers, clients):
    work = Few()
    with Threads(setting, workers) as pool:
        found = {outcome.k: outcome.value for outcome in pool.run(work, {k: k for k in range(clients)})}
    assert found == {k: 10 * k for k in range(clients)}
    assert sorted(k for part in work.seen for k in part) == list(range(clients))
    assert max(map(len, work.seen)) <= 16 and len(work.seen) >= min(clients, 3 * workers)
