"""Where clients' work is done, by name (`find`): "local" is `Threads`, a work.Executor of this process; "ray"
is that of a cluster (fl/run/cluster).

It keeps worker threads, one client each at a time: kernels and torch release the interpreter's lock. A
client gets one kernel thread, or several when fewer clients are left than workers. torch itself stays on one
thread, for its results may depend on the number; those of our kernels do not. A GPU has one worker, which
takes clients by groups (fl/train/places.py).

Packages bring others by an entry point of the group "sparsefl.executors": a class or function with the
arguments of `Threads` that makes a `Pool`.
"""

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Protocol

import torch

import sparse_engine as se
from fl.config import code, words
from fl.errors import ConfigError, Stopped
from fl.run.events import Listener
from fl.train import places
from fl.train.group_worker import GroupWorker
from fl.train.setting import Setting
from fl.train.stop import Stop
from fl.train.work import Executor, Outcome, Task, Together, Value, Work
from fl.train.worker import Worker, worker_on

LOCAL, RAY = "local", "ray"
_KEY = "executor"
# Seconds between two looks at what was found. Who is woken for each outcome takes the interpreter's lock from
# the worker that found it: a tenth of a millisecond per client.
_PAUSE = 0.01
# Seconds after which a worker that computes in Python lets another one on, instead of Python's own 0.005. Two
# workers on small_cnn and digits, in turns: 1.28 to 1.58 client by client, 1.7 to 1.8 with a few at once; on
# an MLP of 0.2 ms per client-round, half of it Python, nothing.
SWITCH = 0.0005
# Which part of its share of the clients that are left a worker takes at once, where the work allows it: ever
# fewer, so that all end together.
_TURNS = 2


class Pool(Executor, Protocol):
    """An executor with workers of its own, which it makes for a run."""

    def warm_up(self, clients: int) -> None:
        """Make the workers that so many clients will need, and all that is made once: no part of a round."""

    def close(self) -> None:
        """Stop what is left. Nothing runs afterwards."""


Make = Callable[[Setting, int, Listener], Pool]
"""make(setting, workers, listener): the executor of one run, with so many workers."""


def names() -> list[str]:
    """Return the names of all executors."""
    return [*dict.fromkeys([LOCAL, RAY, *sorted(code.installed(_KEY))])]


def find(name: str, told: str = _KEY, address: str | None = None, workers: int | None = None) -> Make:
    """What makes the executor of that name. ConfigError, which begins with `told`: there is none.

    address    of a cluster, for "ray"; None: this machine is one
    workers    on each of its machines; None: one per core of it
    """
    if address is not None and name != RAY:
        raise ConfigError(f"address: expected one for {told} {RAY} only, got {address!r} for {name!r}")
    if name == RAY:
        from fl.run.cluster import connection
        from fl.run.cluster.executor import Cluster  # Ray is an extra

        connection.check(address)
        return lambda setting, _, listener: Cluster(setting, workers, listener, address)
    if name == LOCAL:
        return Threads
    if name not in code.installed(_KEY):
        raise ConfigError(f"{told}: expected one of {names()}, got {name!r}{words.nearest(name, names())}")
    make: Make = code.called(name, _KEY).value
    return make


def told(name: str, address: str | None) -> str:
    """What a command line says of an executor, to go on with it."""
    named = "" if name == LOCAL else f" --executor {name}"
    return f"{named} --address {address}" if address is not None else named


class Threads:
    """A `Pool` of threads of this process. Use as a context manager, or `close`."""

    def __init__(self, setting: Setting, workers: int, listener: Listener | None = None) -> None:
        """`listener` hears of waves, and in the workers' threads of clients."""
        if workers < 1:
            raise ValueError(f"expected at least 1 worker, got {workers}")
        self._places = places.of_workers(setting.places, workers)
        self.workers, self._threads = len(self._places), workers
        self._free = deque(self._places)  # those that no thread has taken yet
        self._setting, self._listener = setting, listener or Listener()
        self._stop, self._lock, self._own = Stop(), threading.Lock(), threading.local()
        self._left = 0
        one_thread = torch.set_num_threads, (1,)
        self._pool = ThreadPoolExecutor(self.workers, "worker", *one_thread)

    def run(self, work: Work[Task, Value], tasks: Mapping[int, Task]) -> Iterator[Outcome[Value]]:
        """Outcomes as clients finish. The first error stops the others and is raised."""
        with self._lock:
            self._left += len(tasks)  # two runs at a time share the threads
        self._listener.wave_started(len(tasks))
        todo, found, ended = deque(tasks), deque[Outcome[Value]](), threading.Event()
        done = list[int]()
        count = min(self.workers, len(tasks))
        usual, workers = sys.getswitchinterval(), list[Future[None]]()
        try:
            if count > 1:
                sys.setswitchinterval(min(SWITCH, usual))
            for _ in range(count):
                workers.append(self._pool.submit(self._take, work, tasks, todo, found, done))
                workers[-1].add_done_callback(lambda _: ended.set())
            over = not workers
            while not over:
                ended.wait(_PAUSE)
                ended.clear()
                over = all(worker.done() for worker in workers)  # asked first: all of theirs is in `found`
                while found:
                    yield found.popleft()
            for worker in workers:
                worker.result()
        except Stopped as stopped:  # because of another's error
            self._give_up(workers)
            raise next(_errors(workers), stopped) from None
        except BaseException:
            self._give_up(workers)
            raise
        finally:
            sys.setswitchinterval(usual)
            with self._lock:
                self._left -= len(tasks) - len(done)  # of those that nobody finished

    def warm_up(self, clients: int) -> None:
        count = min(self.workers, clients)
        everybody = threading.Barrier(count)  # or one thread would take two

        def work() -> None:
            everybody.wait()
            self._worker().warm_up()

        for future in [self._pool.submit(work) for _ in range(count)]:
            future.result()

    def close(self) -> None:
        self._stop.set()
        self._pool.shutdown(cancel_futures=True)

    def __enter__(self) -> "Threads":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _take(
        self,
        work: Work[Task, Value],
        tasks: Mapping[int, Task],
        todo: deque[int],
        found: deque[Outcome[Value]],
        done: list[int],
    ) -> None:
        """One client after the other, or a few, until nobody is left to do."""
        with se.steady_plan():
            while todo:
                few = self._share(len(todo)) if isinstance(work, Together) else 1
                some = {k: tasks[k] for k in _taken(todo, max(1, few))}
                if not some:  # another worker was faster
                    return
                found.extend(self._run(work, some, done))

    def _run(
        self, work: Work[Task, Value], tasks: Mapping[int, Task], finished: list[int]
    ) -> list[Outcome[Value]]:
        if self._stop.is_set():
            raise Stopped
        with self._lock:
            threads = max(1, self._threads // min(self.workers, self._left))
        try:
            with se.use_threads(threads):
                if isinstance(work, Together):
                    done = work.many(self._worker(), tasks)
                else:
                    done = {k: work(self._worker(), k, task) for k, task in tasks.items()}
        except BaseException:
            self._stop.set()  # at once: the others would start their next clients
            raise
        with self._lock:
            self._left -= len(tasks)
            finished.extend(tasks)
        for k in tasks:
            self._listener.client_finished(k)
        return [Outcome(k, *done[k]) for k in tasks]

    def _share(self, left: int) -> int:
        """How many clients this thread's worker takes at once. Where all are on GPUs, its whole share."""
        share = left // (_TURNS * self.workers) if places.CPU in self._places else -(-left // self.workers)
        return min(self._worker().most, share)

    def _worker(self) -> Worker | GroupWorker:
        """This thread's own."""
        if not hasattr(self._own, "worker"):
            self._own.worker = worker_on(self._free.popleft(), self._setting, self._stop)
        return self._own.worker

    def _give_up(self, workers: Sequence[Future]) -> None:
        """Wait until nobody works any more; workers look at the flag before every client and batch."""
        self._stop.set()
        for worker in workers:
            worker.cancel()
        wait(workers)
        self._stop.clear()


def _taken(todo: deque[int], most: int) -> Iterator[int]:
    """Take the next ones, as many as there are."""
    try:
        for _ in range(most):
            yield todo.popleft()
    except IndexError:
        return


def _errors(workers: Sequence[Future]) -> Iterator[BaseException]:
    """Yield why workers that have ended failed, unless they were only told to stop."""
    for worker in workers:
        error = None if worker.cancelled() else worker.exception()
        if error is not None and not isinstance(error, Stopped):
            yield error
