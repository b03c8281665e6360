"""`sparsefl bench cluster`: what a Ray cluster costs, against threads of one process with as many cores.

DA-DPFL on images of 3 x 32 x 32 that are made up: 50 samples per client, 1 epoch, M = 4. One run with the
executor local, one with the executor ray, each with a thread per node, round by round in turns: while one
trains, the other one waits. The nodes are of this machine, on loopback. Lines of both runs have to be equal.

local_ms, ray_ms    per client-round: the median of the rounds, but for the first one, in which everything is
                    made that is made once
overhead            of the ratios of each pair of rounds the median, minus 1
start_s             to start workers with data and network, once per run (the cluster itself is there)
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

import fl
import sparse_engine as se
from fl.data import Dataset, from_arrays
from fl.errors import Missing
from fl.run.cluster import connection
from fl.run.events import Listener
from fl.run.keys import TIMING
from sparsefl.bench import report
from sparsefl.bench.meta import meta
from sparsefl.bench.running import shown

Row = dict[str, Any]
NETWORKS = {"resnet18": se.models.resnet18, "lenet5": se.models.lenet5}
CLIENTS = {"resnet18": 8, "lenet5": 200}
_IMAGES, _TESTS = 1_000, 200


def data() -> Dataset:
    """A pattern per class, and noise."""
    rng = np.random.default_rng(0)
    patterns = rng.integers(0, 206, (10, 3, 32, 32))
    parts = []
    for size in (_IMAGES, _TESTS):
        labels = np.arange(size) % 10
        parts += [(patterns[labels] + rng.integers(0, 50, (size, 3, 32, 32))).astype(np.uint8), labels]
    return from_arrays(*parts, classes=10)


class _Watch(Listener):
    """Seconds of rounds."""

    def __init__(self) -> None:
        self.began, self.seconds = 0.0, list[float]()

    def round_started(self, t: int) -> None:
        self.began = perf_counter()

    def round_finished(self, line: Row) -> None:
        self.seconds.append(perf_counter() - self.began)


@contextmanager
def cluster(nodes: int) -> Iterator[str]:
    """The address of a cluster of this machine: nodes of one CPU each."""
    with suppress(Missing):
        connection.check(None)
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        from ray.cluster_utils import Cluster as Nodes

        how = {"worker_niceness": 0}  # as the threads have
        head = {"num_cpus": 1, "include_dashboard": False, "_system_config": how}
        made = Nodes(initialize_head=True, head_node_args=head)
        try:
            for _ in range(nodes - 1):
                made.add_node(num_cpus=1)
            made.wait_for_nodes()
            yield made.address
        finally:
            made.shutdown()
        return
    raise Missing("expected Ray, got none: pip install 'sparsefl[ray]'")


def measure(network: str, density: float, nodes: int, clients: int, rounds: int, address: str) -> Row:
    """One row."""
    settings = {
        "num_clients": clients,
        "num_rounds": rounds + 2,
        "data.partition": "iid",
        "data.disjoint": False,
        "data.train_per_client": 50,
        "data.test_per_client": 20,
        "training.epochs": 1,
        "training.batch_size": 32,
        "topology.degree": min(4, clients - 1),
        "da_dpfl.density": density,
        "da_dpfl.min_first_prune": rounds + 2,
        "run.record_clients": False,
    }

    def simulation(watch: Listener, **where: Any) -> fl.Simulation:
        given = {"network": NETWORKS[network], "data": data(), "set": settings, "listeners": [watch]}
        return fl.Simulation("demo", **given, **where)

    near, far, start = _Watch(), _Watch(), 0.0
    local = simulation(near, workers=nodes)
    remote = simulation(far, executor="ray", address=address, workers=1)
    with closing(local), closing(remote):
        ours, theirs = iter(local), iter(remote)
        for t in range(rounds + 1):
            one = next(ours)
            began = perf_counter()
            other = next(theirs)
            start = perf_counter() - began - far.seconds[0] if t == 0 else start
            if _result(one) != _result(other):
                raise AssertionError(f"round {t}: expected the same line of both, got {one} and {other}")
    pairs = [*zip(near.seconds[1:], far.seconds[1:], strict=True)]
    return {
        "network": network,
        "density": density,
        "nodes": nodes,
        "clients": clients,
        "rounds": rounds,
        "local_ms": 1e3 * median(pair[0] for pair in pairs) / clients,
        "ray_ms": 1e3 * median(pair[1] for pair in pairs) / clients,
        "overhead": median(pair[1] / pair[0] for pair in pairs) - 1,
        "start_s": start,
    }


def _result(line: Row) -> Row:
    return {key: value for key, value in line.items() if key not in TIMING}


def run(
    networks: Sequence[str], density: float, nodes: int, clients: int | None, rounds: int
) -> Iterator[Row]:
    """A row per network, on one cluster."""
    with cluster(nodes) as address:
        for network in networks:
            yield measure(network, density, nodes, clients or CLIENTS[network], rounds, address)


def told(row: Row) -> str:
    """A row in a line, for progress."""
    return f"{row['network']}: {row['local_ms']:.1f} ms with threads, {row['ray_ms']:.1f} ms with Ray"


def summarise(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """{network: {overhead, ray_ms, local_ms}}"""
    return {row["network"]: {key: row[key] for key in ("overhead", "local_ms", "ray_ms")} for row in rows}


def command(rows: Iterator[Row], nodes: int, rounds: int, path: Path | None) -> int:
    """Measure, show, save."""
    found = list(shown(rows, told))
    columns = {"network": "", "density": "", "nodes": "", "clients": "", "local_ms": ".1f", "ray_ms": ".1f",
               "overhead": ".1%", "start_s": ".1f"}  # fmt: skip
    report.show_rows(found, columns, "a Ray cluster against threads, per client-round", report.console())
    if path:
        report.save({"meta": meta(nodes, repeats=rounds), "rows": found, "summary": summarise(found)}, path)
    return 0
