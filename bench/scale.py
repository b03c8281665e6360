"""`sparsefl bench scale`: client-rounds per second, memory and checkpoints of large populations.

Runs of DA-DPFL: LeNet5 on 28 x 28 images (or an MLP 784-32-10, or ResNet18 on 32 x 32), M = 10,
density 0.5, 50 samples per client, 1 epoch, one worker. Clients draw their images, with replacement, from a
file of the user's (--data) or from the digits that are shipped, enlarged. Each number of clients runs in a
process of its own, in a directory, and saves once.

clients_per_s    client-rounds per second: the median of the timed rounds, with all that a round does
cpu_ms           processor time per client-round: that counts on a shared machine
vs_1000          time per client-round over that at 1,000 clients
state_mb         models, masks and first masks of one population, compressed
base_mb          resident memory before the first population: program, libraries, data
peak_mb          most resident memory up to the end of the rounds; mapped files count, too
rss_over_state   (peak_mb - CONSTANT) / state_mb: CONSTANT is for program, data and a worker
checkpoint_s     to write the whole state to disk, the first time
init_s           to draw the first population
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

import fl
from fl.clients import plain
from fl.errors import Expected
from fl.run import records
from fl.run.events import Listener
from fl.run.loop import Options
from sparsefl.bench import report
from sparsefl.bench.meta import meta
from sparsefl.bench.running import shown

Row = dict[str, Any]
CLIENTS, QUICK = (1_000, 10_000, 100_000), (200,)
NETWORKS = ("lenet5", "mlp", "resnet18")
STORES, AT_REST = ("memory", "files"), ("fp32", "bf16")
CONSTANT = 600  # MB
_POPULATION = 4 + 8  # bytes per client of slots and versions
_MB = 1e6


@dataclass(frozen=True)
class Case:
    """One row. `folder`: below it the run lies, and with it the files of the store."""

    clients: int
    network: str = "lenet5"
    store: str = "memory"
    at_rest: str = "fp32"
    rounds: int = 2
    data: str | None = None
    folder: str | None = None
    checkpoint: bool = True

    @property
    def settings(self) -> dict[str, Any]:
        """Changes to the preset "demo"."""
        of_network = {"model.hidden": [32]} if self.network == "mlp" else {}
        return of_network | {
            "model.name": self.network,
            "num_clients": self.clients,
            "num_rounds": 500,
            "data.name": self.data or "digits",
            "data.size": 32 if self.network == "resnet18" else 28,
            "data.partition": "iid",
            "data.disjoint": False,
            "data.train_per_client": 50,
            "data.test_per_client": 20,
            "training.epochs": 1,
            "training.batch_size": 32,
            "topology.degree": 10,
            "da_dpfl.density": 0.5,
            "da_dpfl.max_wait": 10,
            "da_dpfl.min_first_prune": 500,
            "run.store": self.store,
            "run.at_rest": self.at_rest,
            "run.record_clients": False,
            "run.checkpoint_every": 500,
        }


class _Watch(Listener):
    """When rounds begin, and the memory that is taken then."""

    def __init__(self) -> None:
        self.began, self.seconds, self.cpu = (0.0, 0.0), list[float](), list[float]()

    def round_started(self, t: int) -> None:
        self.began = perf_counter(), process_time()

    def round_finished(self, line: Row) -> None:
        self.seconds.append(perf_counter() - self.began[0])
        self.cpu.append(process_time() - self.began[1])


def measure(case: Case) -> Row:
    """One row, in this process."""
    watch = _Watch()
    with tempfile.TemporaryDirectory(dir=case.folder) as folder:
        simulation = fl.Simulation(
            "demo",
            set=case.settings,
            out=Path(folder) / "run",
            options=Options(workers=1, listener=watch),
        )
        base, began = _resident("VmRSS"), perf_counter()
        lines = iter(simulation)
        next(lines)
        init = perf_counter() - began - watch.seconds[0]
        for _ in range(case.rounds - 1):
            next(lines)
        peak, loop = _resident("VmHWM"), simulation.loop
        store = loop.populations.store(None)
        store.tidy()
        state = records.size(plain.populations(loop.after.state))
        began = perf_counter()
        if case.checkpoint:
            loop.book.save(loop.cfg, *loop.after)
        saved = perf_counter() - began
        simulation.close()
    seconds = median(watch.seconds)
    return asdict(case) | {
        "clients_per_s": case.clients / seconds,
        "ms_per_client": 1e3 * seconds / case.clients,
        "cpu_ms": 1e3 * median(watch.cpu) / case.clients,
        "round_s": watch.seconds,
        "init_s": init,
        "state_mb": state / _MB,
        "base_mb": base / _MB,
        "peak_mb": peak / _MB,
        "rss_over_state": max(0.0, peak / _MB - CONSTANT) / (state / _MB),
        "overhead_bytes": store.overhead / case.clients + _POPULATION,
        "checkpoint_s": saved if case.checkpoint else None,
    }


def _resident(key: str) -> int:
    """Bytes of resident memory of this process: VmRSS now, VmHWM at most."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    raise Expected(f"expected {key} in /proc/self/status, got none: this benchmark needs Linux")


def run(cases: Sequence[Case]) -> Iterator[Row]:
    """A row per case, each from a process of its own."""
    for case in cases:
        done = subprocess.run(
            [sys.executable, "-m", "sparsefl.bench.scale", json.dumps(asdict(case))],
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise Expected(f"expected a run of {case.clients} clients, got: {done.stderr.strip()[-2000:]}")
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


def command(cases: Sequence[Case], path: Path | None) -> int:
    """Measure, show, save."""
    rows = list(shown(run(cases), told))
    columns = {"network": "", "clients": "", "store": "", "clients_per_s": ".0f", "ms_per_client": ".2f",
               "cpu_ms": ".2f", "state_mb": ".0f", "base_mb": ".0f", "peak_mb": ".0f",
               "rss_over_state": ".2f",
               "checkpoint_s": ".2f", "init_s": ".1f"}  # fmt: skip
    times = {str(case.clients): case.rounds for case in cases}
    report.show_rows(rows, columns, "large populations, one worker", report.console())
    if path:
        report.save({"meta": meta(1, repeats=times), "rows": rows, "summary": summarise(rows)}, path)
    return 0


if __name__ == "__main__":
    print(json.dumps(measure(Case(**json.loads(sys.argv[1])))))
