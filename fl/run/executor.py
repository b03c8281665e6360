"""Where clients' work is done: `map` runs one function for many clients, side by side.

`Local` keeps worker threads, one client each at a time: kernels and torch release the interpreter's lock. A
client gets one kernel thread, or several when fewer clients are left than workers. torch itself stays on one
thread, for its results may depend on the number; those of our kernels do not.
"""

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import TypeVar

import torch

import sparse_engine as se
from fl.errors import Stopped
from fl.run.events import Listener
from fl.train.worker import Report, Setting, Worker

Task = TypeVar("Task")
Done = TypeVar("Done")


class Local:
    """Threads of this process. Use as a context manager, or `close`."""

    def __init__(self, setting: Setting, workers: int, listener: Listener | None = None) -> None:
        """`listener` hears of waves, and in the workers' threads of clients."""
        if workers < 1:
            raise ValueError(f"expected at least 1 worker, got {workers}")
        self.workers = workers
        self._setting, self._listener = setting, listener or Listener()
        self._stop, self._lock, self._own = threading.Event(), threading.Lock(), threading.local()
        self._reports: dict[int, Report] = {}
        self._left = 0
        self._pool = ThreadPoolExecutor(workers, "worker", initializer=torch.set_num_threads, initargs=(1,))

    def map(
        self, function: Callable[[Worker, int, Task], Done], tasks: Mapping[int, Task]
    ) -> dict[int, Done]:
        """{k: function(worker, k, tasks[k])}. The first error stops the others and is raised."""
        self._left = len(tasks)
        self._listener.wave_started(len(tasks))
        futures = {k: self._pool.submit(self._run, function, k, task) for k, task in tasks.items()}
        try:
            done, _ = wait(futures.values(), return_when=FIRST_EXCEPTION)
            errors = [future.exception() for future in done]
            for error in sorted(filter(None, errors), key=lambda e: isinstance(e, Stopped)):
                raise error
            return {k: future.result() for k, future in futures.items()}
        except BaseException:
            self._give_up([*futures.values()])
            raise

    def warm_up(self, clients: int) -> None:
        """Make the workers that so many clients will need, and all that is made once: no part of a round."""
        count = min(self.workers, clients)
        everybody = threading.Barrier(count)  # or one thread would take two

        def work() -> None:
            everybody.wait()
            self._worker().warm_up()

        for future in [self._pool.submit(work) for _ in range(count)]:
            future.result()

    def reports(self) -> dict[int, Report]:
        """What the workers saw since the last call, by client."""
        reports, self._reports = self._reports, {}
        return reports

    def close(self) -> None:
        self._stop.set()
        self._pool.shutdown(cancel_futures=True)

    def __enter__(self) -> "Local":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, function: Callable[[Worker, int, Task], Done], k: int, task: Task) -> Done:
        if self._stop.is_set():
            raise Stopped
        worker = self._worker()
        worker.report = Report()
        with self._lock:
            threads = self.workers // min(self.workers, self._left)
        try:
            with se.use_threads(threads), se.steady_plan():
                done = function(worker, k, task)
        except BaseException:
            self._stop.set()  # at once: this thread would start the next client
            raise
        with self._lock:
            self._left -= 1
            if worker.report != Report():  # who only tested a model saw nothing of its own
                self._reports[k] = worker.report
        self._listener.client_finished(k)
        return done

    def _worker(self) -> Worker:
        """This thread's own."""
        if not hasattr(self._own, "worker"):
            self._own.worker = Worker(self._setting, self._stop.is_set)
        return self._own.worker

    def _give_up(self, futures: list[Future]) -> None:
        """Wait until nobody works any more; workers look at the event after every batch."""
        self._stop.set()
        for future in futures:
            future.cancel()
        wait(futures)
        self._stop.clear()
