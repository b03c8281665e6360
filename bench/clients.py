"""`sparsefl bench clients`: milliseconds of a client-round on one core, of ours and of a plain PyTorch loop.

A client-round of ours is all that a round of DA-DPFL does for a client: the average over M = 10 neighbours,
test, training, test, drift, growth and message, with what the run does around it. Whole rounds of
`fl.Simulation` are timed and divided by the clients. Nobody waits for others (max_wait = 0) and nobody
prunes: the schedule has its own effect on workers, and the density stays as it is.

program     the default
layers      training.path = layers
dense       training.kernels = dense
loop        hand-written, dense, trains and tests only (bench/loop.py)
compiled    the same with torch.compile

vs_loop, vs_compiled, vs_layers, vs_dense   the other's time over the program's, both of one thread
two_workers                                 client-rounds per second with two workers over those with one

With --device, ours on a GPU (group) takes turns with ours on the CPU (program) and with a plain loop on that
GPU, for GROUP clients. vs_loop is what it wins over that loop, vs_cpu over a core.

All take turns, round by round. Images are made up, in the sizes of real ones: bytes with a pattern per class.
Before anything is timed, a round of the first three must give the same models and losses, two workers the
same bits as one, and both loops a loss that falls.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import fl
import sparse_engine as se
from fl.data import Dataset, from_arrays
from fl.errors import ConfigError
from fl.train import places
from sparse_engine.hardware import cores
from sparsefl.bench import loop
from sparsefl.bench.running import finish, seconds, shown
from sparsefl.bench.stopwatch import Stopwatch
from sparsefl.bench.timing import take_turns

Row = dict[str, Any]
DENSITIES = (0.5, 0.2, 0.1)
CLASSES, NEIGHBOURS = 10, 10
TWO = "program, two workers"
SETTINGS = {
    "program": {},
    TWO: {},
    "layers": {"training.path": "layers"},
    "dense": {"training.kernels": "dense"},
}
GROUP = 256  # clients, on a GPU
ON_GPU = {"vs_loop": "loop", "vs_cpu": "program"}
RIVALS = {"vs_loop": "loop", "vs_compiled": "compiled", "vs_layers": "layers", "vs_dense": "dense"}


@dataclass(frozen=True)
class Case:
    """A network, its images and clients; `repeats`: rounds that are timed unless told."""

    network: Callable[..., nn.Module]
    shape: tuple[int, int, int]
    clients: int
    repeats: int = 9
    samples: int = 50
    tests: int = 20
    batch: int = 32
    lr: float = 0.05

    @cached_property
    def data(self) -> Dataset:
        """A pattern per class, and noise."""
        rng = np.random.default_rng(0)
        patterns = rng.integers(0, 206, (CLASSES, *self.shape))
        parts = []
        for size in (self.samples * self.clients, max(self.tests * self.clients, 200)):
            labels = np.arange(size) % CLASSES
            parts += [(patterns[labels] + rng.integers(0, 50, (size, *self.shape))).astype(np.uint8), labels]
        return from_arrays(*parts, classes=CLASSES)

    def simulation(self, who: str, density: float, device: str = "cpu") -> fl.Simulation:
        """The run of one of ours."""
        settings = {
            "num_clients": self.clients,
            "num_rounds": 500,
            "data.partition": "iid",
            "data.train_per_client": self.samples,
            "data.test_per_client": self.tests,
            "training.epochs": 1,
            "training.batch_size": self.batch,
            "training.lr": self.lr,
            "topology.degree": min(NEIGHBOURS, self.clients - 1),
            "da_dpfl.density": density,
            "da_dpfl.max_wait": 0,
            "da_dpfl.min_first_prune": 500,
        }
        workers = None if device != "cpu" else 2 if who == TWO else 1
        changes = settings | SETTINGS.get(who, {})
        given = {"network": self.network, "data": self.data, "set": changes}
        return fl.Simulation("demo", **given, workers=workers, device=device)


CASES = {
    "mlp": Case(se.models.mlp, (1, 8, 8), clients=100),
    "lenet5": Case(se.models.lenet5, (1, 28, 28), clients=40),
    "small_cnn-digits": Case(partial(se.models.small_cnn, width=16), (1, 8, 8), clients=40),
    "small_cnn-cifar10": Case(se.models.small_cnn, (3, 32, 32), clients=20, repeats=5, lr=0.1),
    "resnet18": Case(se.models.resnet18, (3, 32, 32), clients=12, repeats=3, samples=64),
}
QUICK = (("mlp",), DENSITIES[:1])  # networks and densities of a look: seconds


class Run:
    """One of ours, round by round."""

    def __init__(self, case: Case, who: str, density: float, device: str = "cpu") -> None:
        self._simulation = case.simulation(who, density, device)
        self.setting = self._simulation.loop.setting
        self._lines = iter(self._simulation)

    def round(self) -> Row:
        """The next round's line."""
        return next(self._lines)

    def model(self, k: int) -> se.Model:
        return self._simulation.result().model(k)

    def close(self) -> None:
        self._simulation.close()


def run(
    names: Sequence[str], densities: Sequence[float], repeats: int | None = None, device: str = "cpu"
) -> Iterator[Row]:
    """A row a network, density and contestant; one that cannot run says why in `skipped`."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for name in names:
            if device != "cpu":
                case = replace(CASES[name], clients=GROUP)
                one = loop.fastest(Run(case, "dense", 1.0).setting).to(device)
                check_falls("loop", [one.round() for _ in range(3)])
                for density in densities:
                    who = {"group": device, "program": "cpu"}
                    yield from _rows(name, case, density, who, {"loop": one}, repeats or case.repeats)
                continue
            loops, skipped = rival_loops(CASES[name])
            for density in densities:
                who = {one: "cpu" for one in SETTINGS if one != TWO or cores() > 1}
                yield from _rows(name, CASES[name], density, who, loops, repeats or CASES[name].repeats)
                yield from (_named(name, density, who) | {"skipped": why} for who, why in skipped.items())
    finally:
        torch.set_num_threads(threads)


def rival_loops(case: Case) -> tuple[dict[str, loop.Loop], dict[str, str]]:
    """The plain loops, which train; and why others do not run."""
    torch.manual_seed(0)
    made = Run(case, "dense", 1.0)
    plain = loop.fastest(made.setting)
    made.close()
    compiled = plain.compiled()
    try:
        compiled.client(0)
    except Exception as wrong:  # whatever a compiler that is not there raises
        why = f"torch.compile: {type(wrong).__name__}: {wrong}".splitlines()[0]
        loops, skipped = {"loop": plain}, {"compiled": why}
    else:
        loops, skipped = {"loop": plain, "compiled": compiled}, {}
    for who, one in loops.items():
        check_falls(who, [one.round() for _ in range(3)])
    return loops, skipped


def _rows(
    name: str, case: Case, density: float, ours: dict[str, str], loops: dict[str, loop.Loop], repeats: int
) -> Iterator[Row]:
    """`ours`: those of ours that take part, and their devices. The first is what others are compared with."""
    with ExitStack() as stack:
        runs = {}
        for who, device in ours.items():
            runs[who] = Run(case, who, density, device)
            stack.callback(runs[who].close)
        check({who: (one.round(), one.model(0)) for who, one in runs.items()})
        rounds = {who: one.round for who, one in (runs | loops).items()}
        watches = {who: Stopwatch() for who in rounds}

        def turn(who: str) -> None:
            with watches[who].around({}):
                rounds[who]()

        timings = take_turns({who: partial(turn, who) for who in rounds}, repeats=repeats, burst=0)
    for who, timing in timings.items():
        yield _named(name, density, who) | {
            "median_ms": 1e3 * timing.median / case.clients,
            "cpu_ms": 1e3 * watches[who].medians()["other"] / case.clients,
            "spread": timing.spread,
            "per_second": case.clients / timing.median,
            "times_ours": timing.median / timings[next(iter(ours))].median,
        }


def _named(name: str, density: float, who: str) -> Row:
    return {"network": name, "density": density, "name": who}


def check(found: dict[str, tuple[Row, se.Model]]) -> None:
    """The lines and models of a first round of ours agree. A wrong result gets no time."""
    line, model = found["program"]
    for who, (other, theirs) in found.items():
        exact = who == TWO
        for key in ("loss", "accuracy_before"):
            if not abs(line[key] - other[key]) <= (0 if exact else 1e-2):
                raise AssertionError(
                    f"{who}: expected a {key} of {line[key]} as the program, got {other[key]}"
                )
        error = distance(model, theirs)
        if not error <= (0 if exact else 1e-3):
            raise AssertionError(f"{who}: expected the program's weights, got them apart by {error:.2g}")


def distance(a: se.Model, b: se.Model) -> float:
    """||a - b|| / ||a|| of two models with one mask; inf where masks differ."""
    if not torch.equal(a.bitmap.words, b.bitmap.words):
        return float("inf")
    x, y = (torch.cat([model.values, model.rest]).double() for model in (a, b))
    return float((x - y).norm() / x.norm())


def check_falls(who: str, losses: Sequence[float]) -> None:
    """A loop trains: the loss of its rounds falls."""
    if not losses[-1] < 0.98 * losses[0]:
        raise AssertionError(f"{who}: expected a loss that falls by 2 %, got {losses}")


def told(row: Row) -> str:
    """A row in a line, for progress."""
    case = f"{row['network']}, density {row['density']:g}: {row['name']}"
    return f"{case} skipped: {row['skipped']}" if "skipped" in row else f"{case} {seconds(row['median_ms'])}"


def summarise(rows: Sequence[Row], key: str = "median_ms") -> dict[str, dict[str, dict[str, float]]]:
    """{network: {density: ratios}} of `key`: median_ms (wall) or cpu_ms; two_workers is of the wall."""
    summary: dict[str, dict[str, dict[str, float]]] = {}
    for network, density in dict.fromkeys((row["network"], row["density"]) for row in rows):
        same = {
            row["name"]: row
            for row in rows
            if (row["network"], row["density"]) == (network, density) and "skipped" not in row
        }
        ours, rivals = (same["group"], ON_GPU) if "group" in same else (same["program"], RIVALS)
        cell = {ratio: same[who][key] / ours[key] for ratio, who in rivals.items() if who in same}
        if TWO in same:
            cell["two_workers"] = ours["median_ms"] / same[TWO]["median_ms"]
        summary.setdefault(network, {})[str(density)] = cell
    return summary


def command(
    names: Sequence[str],
    densities: Sequence[float],
    repeats: int | None,
    clock: str,
    path: Path | None,
    device: str = "cpu",
) -> int:
    """Measure, show, save; `clock`: what ratios are of, median_ms or cpu_ms."""
    if device != "cpu":
        device = ",".join(places.find(device, "--device"))
        if clock != "median_ms":
            raise ConfigError("--cpu-time: expected --device cpu, whose time it is, got a GPU")
    rows = list(shown(run(names, densities, repeats, device), told))
    columns = {"network": "", "density": "", "name": "", "median_ms": ".3f", "cpu_ms": ".3f",
               "spread": ".2f", "per_second": ".0f", "times_ours": ".2f", "skipped": ""}  # fmt: skip
    title = f"one client-round, ms; one thread per worker; ratios are of {clock}"
    times = repeats or {name: CASES[name].repeats for name in names}
    summary = partial(summarise, key=clock)
    return finish(rows, columns, summary, path, repeats=times, title=title, ratios_of=clock)
