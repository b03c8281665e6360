"""`sparsefl bench scale`: client-rounds per second, memory and checkpoints of large populations.

A run of DA-DPFL: LeNet5 on 28 x 28 images (or an MLP 784-32-10), M = 10, density 0.5, 50 samples per client,
1 epoch, one worker. Images are made up, 5,000 of them, and clients share them. Each number of clients runs in
a process of its own, whose peak of resident memory is that case's alone.

clients_per_s    client-rounds per second of the timed rounds, with all that a round does
vs_1000          time per client-round over that at 1,000 clients
state_mb         the compressed models and masks of one population, once
base_mb          resident memory before the first population: program, libraries, data
rss_over_state   (peak of resident memory - base_mb) / state_mb
checkpoint_s     to write the whole state to disk
init_s           to draw the first population
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

import fl
import sparse_engine as se
from fl.data import Dataset, from_arrays
from fl.errors import Expected
from fl.run import book, history
from fl.run.events import Listener
from fl.run.loop import Options
from fl.run.rundir import RunDir
from sparsefl.bench import report
from sparsefl.bench.meta import meta
from sparsefl.bench.running import shown

Row = dict[str, Any]
CLIENTS, QUICK = (1_000, 10_000, 100_000), (200,)
NETWORKS = {"lenet5": se.models.lenet5, "mlp": partial(se.models.mlp, hidden=(32,))}
STORES = ("memory", "files")
_IMAGES, _TESTS = 5_000, 500
_MB = 1e6


def data() -> Dataset:
    """Images of 28 x 28 bytes: a pattern per class, and noise."""
    rng = np.random.default_rng(0)
    patterns = rng.integers(0, 206, (10, 1, 28, 28))
    parts = []
    for size in (_IMAGES, _TESTS):
        labels = np.arange(size) % 10
        parts += [(patterns[labels] + rng.integers(0, 50, (size, 1, 28, 28))).astype(np.uint8), labels]
    return from_arrays(*parts, classes=10)


class _Watch(Listener):
    """When rounds begin, and the memory that is taken then."""

    def __init__(self) -> None:
        self.began, self.seconds = 0.0, list[float]()

    def round_started(self, t: int) -> None:
        self.began = perf_counter()

    def round_finished(self, line: Row) -> None:
        self.seconds.append(perf_counter() - self.began)


def measure(clients: int, network: str = "lenet5", store: str = "memory", rounds: int = 1) -> Row:
    """One row, in this process."""
    watch = _Watch()
    settings = {
        "num_clients": clients,
        "num_rounds": 500,
        "data.partition": "iid",
        "data.disjoint": False,
        "data.train_per_client": 50,
        "data.test_per_client": 20,
        "training.epochs": 1,
        "training.batch_size": 32,
        "topology.degree": 10,
        "da_dpfl.density": 0.5,
        "da_dpfl.min_first_prune": 500,
        "run.store": store,
        "run.record_clients": False,
    }
    simulation = fl.Simulation(
        "demo",
        network=NETWORKS[network],
        data=data(),
        set=settings,
        options=Options(workers=1, listener=watch),
    )
    base, began = _resident("VmRSS"), perf_counter()
    lines = iter(simulation)
    next(lines)
    init = perf_counter() - began - watch.seconds[0]
    for _ in range(rounds - 1):
        next(lines)
    peak = _resident("VmHWM")
    kept = simulation.loop.store(None)
    kept.tidy()
    checkpoint = _checkpoint(simulation)
    seconds = min(watch.seconds)
    row = {
        "network": network,
        "clients": clients,
        "store": store,
        "rounds": rounds,
        "clients_per_s": clients / seconds,
        "ms_per_client": 1e3 * seconds / clients,
        "init_s": init,
        "state_mb": kept.nbytes / _MB,
        "base_mb": base / _MB,
        "peak_mb": peak / _MB,
        "rss_over_state": (peak - base) / kept.nbytes,
        "overhead_bytes": kept.overhead / clients + 16,
        "checkpoint_s": checkpoint,
    }
    simulation.close()
    return row


def _checkpoint(simulation: fl.Simulation) -> float:
    """Seconds to write the state."""
    loop = simulation.loop
    with tempfile.TemporaryDirectory() as folder, RunDir.create(Path(folder) / "run") as run:
        files = book.Files(run)
        files.begin({})
        began = perf_counter()
        after = loop.after
        files.save(
            loop.cfg, after.round, files.marks(), after.history or (history.now(0, 1, "", {}),), after.state
        )
        return perf_counter() - began


def _resident(key: str) -> int:
    """Bytes of resident memory of this process: VmRSS now, VmHWM at most."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    raise Expected(f"expected {key} in /proc/self/status, got none: this benchmark needs Linux")


def run(clients: Sequence[int], network: str, store: str, rounds: int | None) -> Iterator[Row]:
    """A row per number of clients, each from a process of its own."""
    for count in clients:
        times = rounds or (3 if count <= 1_000 else 1)
        given = [str(count), network, store, str(times)]
        done = subprocess.run(
            [sys.executable, "-m", "sparsefl.bench.scale", *given], capture_output=True, text=True
        )
        if done.returncode:
            raise Expected(f"expected a run of {count} clients, got: {done.stderr.strip()[-2000:]}")
        yield json.loads(done.stdout.splitlines()[-1])


def told(row: Row) -> str:
    """A row in a line, for progress."""
    speed = f"{row['clients_per_s']:.0f} client-rounds/s"
    return f"{row['network']}, {row['clients']:,} clients: {speed}, {row['rss_over_state']:.2f} x its state"


def summarise(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """{clients: ...}; vs_1000 only where 1,000 clients (or the fewest) were measured beside."""
    first = min(rows, key=lambda row: row["clients"])
    keys = ("clients_per_s", "rss_over_state", "checkpoint_s")
    return {
        str(row["clients"]): {key: row[key] for key in keys}
        | ({"vs_1000": row["ms_per_client"] / first["ms_per_client"]} if first["clients"] == 1_000 else {})
        for row in rows
    }


def command(clients: Sequence[int], network: str, store: str, rounds: int | None, path: Path | None) -> int:
    """Measure, show, save."""
    rows = list(shown(run(clients, network, store, rounds), told))
    columns = {"network": "", "clients": "", "store": "", "clients_per_s": ".0f", "ms_per_client": ".2f",
               "state_mb": ".0f", "base_mb": ".0f", "peak_mb": ".0f", "rss_over_state": ".2f",
               "checkpoint_s": ".2f", "init_s": ".1f"}  # fmt: skip
    times = {str(row["clients"]): row["rounds"] for row in rows}
    report.show_rows(rows, columns, "large populations, one worker", report.console())
    if path:
        report.save({"meta": meta(1, repeats=times), "rows": rows, "summary": summarise(rows)}, path)
    return 0


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]))))
