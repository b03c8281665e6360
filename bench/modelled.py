"""`sparsefl bench models --model-only --device rtx4090`: what bench/card.py says of networks and runs.

A row per network, batch, density and way, `model_ms` of a training step (forward, backward, SGD):

dense fp32, tf32, fp16   cuDNN
bitmap, csr              all layers of that kind
plan                     per layer and pass the fastest of dense TF32, bitmap, CSR; sparse if it wins by 5 %
group                    our kernels for many clients at once, per client and step, CSR; `clients` in a group
eager                    PyTorch, dense TF32, one client: its calls, or the card, whichever is slower

and of each of the paper's presets, hours of a whole run: `group`, and `plan` one client after the other.
No column of measurements: figures are a model, and say so.
"""

from collections.abc import Iterator, Sequence
from inspect import signature
from math import ceil
from pathlib import Path
from typing import Any

from torch import nn

import sparse_engine as se
from fl import config
from fl.errors import ConfigError
from sparse_engine.program import steps
from sparse_engine.program.capture import capture
from sparse_engine.program.steps import Graph
from sparsefl.bench import card as cards
from sparsefl.bench import options, report
from sparsefl.bench.card import Card, Pass
from sparsefl.bench.meta import meta
from sparsefl.bench.options import Values
from sparsefl.bench.running import shown
from sparsefl.kernels.group import lanes_for

Row = dict[str, Any]
NETWORKS = {  # classes, sample
    "lenet5": (10, (1, 28, 28)),
    "mlp": (10, (1, 8, 8)),
    "small_cnn": (10, (3, 32, 32)),
    "resnet18": (10, (3, 32, 32)),
    "vgg11": (100, (3, 32, 32)),
    "alexnet": (7, (3, 64, 64)),
}
PRESETS = {"cifar10": "resnet18", "cifar100": "vgg11", "ham10000": "alexnet"}
SAMPLES = {"cifar10": 500, "cifar100": 500, "ham10000": 650}  # of a client, on average
DENSITIES = (0.5, 0.2, 0.1, 0.05)
WINS = 0.95  # sparse only where it takes less than this of dense


def run(
    names: Sequence[str], batches: Sequence[int], densities: Sequence[float], device: str
) -> Iterator[Row]:
    """A row per network, batch, density and way; then a row per preset and algorithm."""
    card = cards.CARDS[device]
    for name in names:
        graph = captured(name)
        for batch in batches:
            for density in densities:
                yield from _rows(card, name, graph, batch, density)


def experiments(device: str, density: float = 0.5) -> Iterator[Row]:
    """Hours of the paper's presets on the card, all clients of all rounds, by algorithm."""
    card = cards.CARDS[device]
    for preset, network in PRESETS.items():
        for algorithm in (
            "da_dpfl",
            "dispfl",
            "dfedavgm",
            "dfedsam",
            "gossipfl",
            "beer",
            "fedavg",
            "feddst",
            "ditto",
        ):
            cfg = config.load(preset, [f"algorithm={algorithm}"])
            local = cfg.settings.trainings(cfg.training)
            dense = algorithm in ("dfedavgm", "dfedsam", "gossipfl", "beer", "fedavg", "ditto")
            share, twice = (1.0 if dense else density), (2 if algorithm == "dfedsam" else 1)
            clients = min(cfg.num_clients, 10) if algorithm in ("fedavg", "feddst") else cfg.num_clients
            steps_ = sum(one.epochs * ceil(SAMPLES[preset] / one.batch_size) for one in local) * twice
            total, graph = clients * cfg.num_rounds * steps_, captured(network)
            batch = local[0].batch_size
            row = {"preset": preset, "algorithm": algorithm, "density": share, "steps": total}
            yield row | {
                "group_hours": total * group(card, graph, batch, share)[0] / 3600,
                "plan_hours": total * sum(_plan(card, p, share) for p in cards.passes(graph, batch)) / 3600,
                "fp16_hours": total
                * sum(cards.dense(card, p, card.fp16, 0.5) for p in cards.passes(graph, batch))
                / 3600,
            }


def captured(name: str) -> Graph:
    classes, shape = NETWORKS[name]
    sizes = {"num_classes": classes, "in_channels": shape[0], "in_features": shape[0] * shape[1] * shape[2]}
    made: nn.Module = se.models.by_name(name, **{k: v for k, v in sizes.items() if k in _arguments(name)})
    return capture(made, shape, se.compress(made).layout)


def _arguments(name: str) -> set[str]:
    return set(signature(getattr(se.models, name)).parameters)


def _rows(card: Card, name: str, graph: Graph, batch: int, density: float) -> Iterator[Row]:
    all_passes = list(cards.passes(graph, batch))
    ways = {
        "dense fp32": sum(cards.dense(card, p, card.fp32) for p in all_passes),
        "dense tf32": sum(cards.dense(card, p, card.tf32) for p in all_passes),
        "dense fp16": sum(cards.dense(card, p, card.fp16, 0.5) for p in all_passes),
        "bitmap": sum(cards.bitmap(card, p, density) for p in all_passes),
        "csr": sum(cards.csr(card, p, density) for p in all_passes),
        "plan": sum(_plan(card, p, density) for p in all_passes),
        "eager": max(calls(graph) * card.call, sum(cards.dense(card, p, card.tf32) for p in all_passes)),
    }
    found = {"model": name, "batch": batch, "density": density}
    for way, seconds in ways.items():
        yield found | {"name": way, "model_ms": 1e3 * seconds, "vs_tf32": ways["dense tf32"] / seconds}
    if batch <= 128:
        seconds, clients = group(card, graph, batch, density)
        more = {
            "vs_tf32": ways["dense tf32"] / seconds,
            "vs_eager": ways["eager"] / seconds,
            "clients": clients,
        }
        yield found | {"name": "group", "model_ms": 1e3 * seconds} | more


def _plan(card: Card, p: Pass, density: float) -> float:
    dense = cards.dense(card, p, card.tf32)
    sparse = min(cards.bitmap(card, p, density), cards.csr(card, p, density))
    return sparse if sparse < WINS * dense else dense


def calls(graph: Graph) -> int:
    """ATen calls of an eager step, about: three per step of the graph and parameter of the optimizer."""
    return 3 * len(graph.steps) + 3 * len(graph.layout.names) + 12


def group(card: Card, graph: Graph, batch: int, density: float) -> tuple[float, int]:
    """Seconds per client and step of our kernels, and the clients of a group: as many as the cache holds."""
    lanes, found = lanes_for(batch), list(cards.passes(graph, batch))
    weights = sum(graph.layout.segments.sizes)
    images = sum(4 * lanes * _size(value) for value in graph.values)
    step = 2 * images + density * weights * 44
    clients = int(max(1, min(256, card.cache_bytes // step)))
    bandwidth = card.cache if clients * step <= card.cache_bytes else card.memory
    clients = max(16, clients) if bandwidth == card.cache else 16
    flop = sum(density * p.flop / (card.csr_weight if p.weight else card.csr) for p in found) * lanes / batch
    traffic = (3 * images + density * weights * 64) / bandwidth
    launches = 4 + 3 * len([step for step in graph.steps if not isinstance(step, steps.Flatten)])
    return max(flop, traffic) + launches * card.node / clients, clients


def _size(shape: tuple[int, int, int]) -> int:
    return shape[0] * shape[1] * shape[2]


def command(
    model_only: bool, device: str | None, model: Values, batch: Values, density: Values, path: Path | None
) -> int:
    """Show and save; everything is named a model."""
    if not model_only or device not in cards.CARDS:
        raise ConfigError(f"--device: expected {' or '.join(cards.CARDS)}, with --model-only, got {device}")
    names = options.names("--model", model, tuple(NETWORKS), NETWORKS)
    batches, densities = (
        options.counts("--batch", batch, (32, 128)),
        options.shares("--density", density, DENSITIES),
    )
    rows = list(shown(run(names, batches, densities, device), told))
    runs = list(experiments(device))
    console, title = report.console(), f"a MODEL of the {cards.CARDS[device].name}, nothing was measured: "
    steps_ = {"model": "", "batch": "", "density": "", "name": "", "model_ms": ".3f", "vs_tf32": ".2f",
              "vs_eager": ".0f", "clients": ""}  # fmt: skip
    hours = {"preset": "", "algorithm": "", "density": "", "steps": ",", "group_hours": ".2f",
             "plan_hours": ".2f", "fp16_hours": ".2f"}  # fmt: skip
    report.show_rows(rows, steps_, f"{title}ms of a training step, per client", console)
    report.show_rows(runs, hours, f"{title}hours of the paper's runs", console)
    console.print(f"assumed: {cards.ASSUMED}", markup=False, highlight=False, soft_wrap=True)
    if path:
        result = {"meta": meta(1), "rows": [*rows, *runs], "summary": summarise(rows), "model": cards.ASSUMED}
        report.save(result, path)
    return 0


def told(row: Row) -> str:
    """A row in a line, for progress."""
    if "preset" in row:
        return f"{row['preset']}, {row['algorithm']}: {row['group_hours']:.2f} h (model)"
    where = f"{row['model']}, batch {row['batch']}, density {row['density']:g}"
    return f"{where}: {row['name']} {row['model_ms']:.3g} ms (model)"


def summarise(rows: Sequence[Row]) -> dict[str, Any]:
    """{network: {batch: {density: {way: model_ms}}}}"""
    found: dict[str, Any] = {}
    for row in rows:
        if "model" in row:
            cell = found.setdefault(row["model"], {}).setdefault(str(row["batch"]), {})
            cell.setdefault(str(row["density"]), {})[row["name"]] = row["model_ms"]
    return found
