"""`sparsefl bench models`: a training step (forward, loss, backward, update), sparse against dense PyTorch.

Ours is a step of the network as a program (se.compile), as runs take it; layer by layer where it cannot be
one (`--model mixer,vit,encoder`: bench/networks.py).

vs_dense      the fastest step of dense PyTorch of our precision (bench/dense.py: layouts, compiled), over
              ours; with --precision bf16 ours is in bfloat16 and the rivals are under autocast
vs_best       the fastest of all, with bf16 autocast too: below 1 it beats ours
vs_masked     dense PyTorch that multiplies weights and gradients by masks (as the authors do), over ours
vs_layers     the sparse network layer by layer, with autograd, over ours (of our precision)
vs_fp32       with --precision bf16: our program in float32 over ours
realisation   vs_dense / (dense FLOP / sparse FLOP): 1 when every saved FLOP is a saved moment
memory        peak bytes of a step over dense PyTorch's, each in a process of its own;   memory_layers: layer
              by layer
"""

import copy
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import sparse_engine as se
from sparse_engine.nn import precision as precisions
from sparse_engine.program.batches import Batches, Data, Training
from sparse_engine.program.capture import capture
from sparse_engine.program.cpu.session import Session
from sparsefl.bench import dense, networks
from sparsefl.bench.dense import DECAY, RATE
from sparsefl.bench.running import seconds
from sparsefl.bench.timing import take_turns
from sparsefl.kernels import use_threads

MODELS = {"resnet18": (10, (3, 32, 32)), "vgg11": (100, (3, 32, 32)), "alexnet": (7, (3, 64, 64))}
DENSITIES = (0.5, 0.35, 0.2, 0.1)
OTHERS = dict.fromkeys(networks.NETWORKS, (10, (3, 32, 32)))  # by name only
BATCHES = (32, 128)
KINDS = ("program", "layers", "dense")  # whose memory is measured
Joules = Callable[[dict[str, Callable[[], object]], int], dict[str, dict[str, Any]]]
RIVALS = {"layers": "vs_layers", "masked torch": "vs_masked"}
RIVALS_BF16 = {"layers bf16": "vs_layers", "program": "vs_fp32", "masked torch": "vs_masked"}
PRECISIONS = ("fp32", "bf16")
QUICK = (("vgg11",), (32,), (0.5, 0.2))  # networks, batches and densities of a look: seconds


def run(
    names: tuple[str, ...],
    batches: tuple[int, ...],
    densities: tuple[float, ...],
    *,
    threads: int,
    repeats: int,
    clock: Callable[[], float] = time.perf_counter,
    memory: bool = True,
    compiled: bool = True,
    joules: Joules | None = None,
    precision: str = "fp32",
) -> Iterator[dict[str, Any]]:
    """A row per network, batch, density and contestant; one that cannot run says why in `skipped`.

    compiled: with torch.compile among the rivals, which takes minutes to compile.
    joules: gives the columns of measured joules of every contestant.
    """
    torch.set_num_threads(threads)
    with use_threads(threads):
        for name in names:
            for batch in batches:
                torch.manual_seed(0)
                classes, shape = known(name)
                images, labels = torch.randn(batch, *shape), torch.randint(0, classes, (batch,))
                rivals = dense.rivals(name, classes, images, labels, compiled=compiled)
                for density in densities:
                    yield from _rows(
                        name, images, labels, density, rivals, repeats, clock, memory, joules, precision
                    )


def _rows(
    name: str,
    images: Tensor,
    labels: Tensor,
    density: float,
    rivals: dense.Rivals,
    repeats: int,
    clock: Callable[[], float],
    memory: bool,
    joules: Joules | None,
    precision: str,
) -> Iterator[dict[str, Any]]:
    (_, shape), batch = known(name), len(labels)
    sparse = checked(name, images, labels, density)
    skipped = dict(rivals.skipped)
    contestants = _ours(sparse, images, labels, "", skipped)
    if precision == "bf16":
        del contestants["layers"]
        twin = rounded(sparse, images, labels)
        contestants = _ours(twin, images, labels, dense.BF16, skipped) | contestants
    mine = next(iter(contestants))
    contestants |= rivals.steps
    contestants["masked torch"] = dense_step(se.to_dense(sparse), images, labels, se.masks(sparse))
    timings = take_turns(contestants, repeats=repeats, burst=1, clock=clock)
    measured = joules(contestants, batch) if joules is not None else {}
    ours = timings[mine].median
    flops = se.count_flops(sparse, shape)
    kinds = tuple(who for who in KINDS if who not in skipped)
    peaks = _peaks(name, batch, density, kinds, precision) if memory else {}
    case = {"model": name, "batch": batch, "density": density, "precision": precision}
    for who, timing in timings.items():
        yield case | {
            "name": who,
            "median_ms": timing.median * 1e3,
            "spread": timing.spread,
            "times_ours": timing.median / ours,
            "flop_ratio": flops.dense_step / flops.sparse_step,
            "memory_ratio": _ratio(peaks, who, precision),
            **measured.get(who, {}),
        }
    yield from (case | {"name": who, "skipped": why} for who, why in skipped.items())


def _ours(
    net: nn.Module, images: Tensor, labels: Tensor, suffix: str, skipped: dict[str, str]
) -> dict[str, Callable[[], object]]:
    """Our steps of a network, the one that runs take first; why there is no program goes into `skipped`."""
    steps: dict[str, Callable[[], object]] = {}
    try:
        steps["program" + suffix] = program_step(net, images, labels)[0]
    except se.NotCaptured as why:
        skipped["program" + suffix] = str(why)
    return steps | {"layers" + suffix: layers_step(copy.deepcopy(net), images, labels)}


def _peaks(name: str, batch: int, density: float, kinds: tuple[str, ...], precision: str) -> dict[str, float]:
    from sparsefl.bench.peaks import peak_memory  # a program of its own, which imports this file

    return peak_memory(name, batch, density, kinds, precision)


def _ratio(peaks: dict[str, float], who: str, precision: str) -> float | None:
    """Peak bytes of one of ours, in the precision that was measured, over dense PyTorch's."""
    kind, *rounded = who.split()
    if kind not in peaks or kind not in KINDS or bool(rounded) != (precision == "bf16"):
        return None
    return peaks[kind] / peaks["dense"]


def known(name: str) -> tuple[int, tuple[int, int, int]]:
    """Classes and images of a network."""
    return MODELS[name] if name in MODELS else OTHERS[name]


def checked(name: str, images: Tensor, labels: Tensor, density: float) -> nn.Module:
    """The sparse network, whose outputs are those of the dense one; and its step, if it is a program."""
    torch.manual_seed(0)
    sparse = se.sparsify(networks.build(name, known(name)[0]), density=density, seed=0)
    _check(sparse, images)
    with suppress(se.NotCaptured):
        _check_step(sparse, images, labels)
    return sparse


def rounded(sparse: nn.Module, images: Tensor, labels: Tensor) -> nn.Module:
    """The same network in bf16: its outputs are as near as bfloat16 is, and so is the step of its program."""
    twin = se.sparsify(se.to_dense(sparse), masks=se.masks(sparse), precision="bf16")
    with torch.no_grad():
        ours, exact = twin.eval()(images), sparse.eval()(images)
    sparse.train()
    error = ((ours - exact).norm() / exact.norm()).item()
    if not error < 0.05:
        raise AssertionError(f"outputs in bf16 are off by {error:.2g}: a wrong result gets no time")
    with suppress(se.NotCaptured):
        _check_step(twin.train(), images, labels, 0.2)
    return twin.train()


def program_step(
    net: nn.Module, images: Tensor, labels: Tensor, lr: float = RATE
) -> tuple[Callable[[], object], se.Model]:
    """A step of the network as a program, which also gathers its batch, and the model that it trains."""
    model = se.compress(net)
    session = Session(capture(se.to_dense(net), tuple(images.shape[1:]), model.layout), precisions.of(net))
    batches = Batches(Data(images.numpy(), labels.numpy()), np.arange(len(labels)), len(labels))
    how = Training(lr=lr, weight_decay=DECAY, seeds=(0,) * session.graph.num_dropouts)
    return (lambda: session.train(model, batches, how)), model


def layers_step(net: nn.Module, images: Tensor, labels: Tensor, lr: float = RATE) -> Callable[[], None]:
    optimizer = se.SparseSGD(net, lr=lr, weight_decay=DECAY)
    return lambda: _step(net, optimizer, images, labels)


def dense_step(
    net: nn.Module, images: Tensor, labels: Tensor, masks: dict[str, Tensor] | None
) -> Callable[[], None]:
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE, weight_decay=DECAY)
    if masks is None:
        return lambda: _step(net, optimizer, images, labels)
    masked = [(net.get_parameter(name), mask.float()) for name, mask in masks.items()]

    def run() -> None:
        optimizer.zero_grad()
        F.cross_entropy(net(images), labels).backward()
        for p, m in masked:
            p.grad.mul_(m)
        optimizer.step()
        for p, m in masked:
            p.data.mul_(m)

    return run


def _step(net: nn.Module, optimizer: torch.optim.Optimizer, images: Tensor, labels: Tensor) -> None:
    optimizer.zero_grad()
    F.cross_entropy(net(images), labels).backward()
    optimizer.step()


def _check(sparse: nn.Module, images: Tensor) -> None:
    sparse.eval()
    dense = se.to_dense(sparse).eval()
    with torch.no_grad():
        ours, theirs = sparse(images), dense(images)
    sparse.train()
    error = ((ours - theirs).norm() / theirs.norm()).item()
    if not error < 1e-4:
        raise AssertionError(f"outputs are off by {error:.2g}: a wrong result gets no time")


def _check_step(net: nn.Module, images: Tensor, labels: Tensor, most: float = 1e-3) -> None:
    """A program and the layers take the same step, without dropout: their draws differ. `most`: how far they
    may be apart."""
    net = copy.deepcopy(net)
    for module in net.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    before = _numbers(se.compress(net))
    step, model = program_step(net, images, labels, lr=1.0)
    step()
    layers_step(net, images, labels, lr=1.0)()
    wanted = _numbers(se.compress(net)) - before
    error = float((_numbers(model) - before - wanted).norm() / wanted.norm())
    if not error < most:
        raise AssertionError(f"steps are off by {error:.2g}: a wrong result gets no time")


def _numbers(model: se.Model) -> Tensor:
    return torch.cat([model.values, model.rest])


def told(row: dict[str, Any]) -> str:
    """A row in a line, for progress."""
    case = f"{row['model']}, batch {row['batch']}, density {row['density']:g}: {row['name']}"
    return f"{case} skipped: {row['skipped']}" if "skipped" in row else f"{case} {seconds(row['median_ms'])}"


def summarise(rows: list[dict[str, Any]]) -> dict[str, dict[str, dict[str, float]]]:
    summary: dict[str, dict[str, dict[str, float]]] = {}
    for row in rows:
        if "skipped" in row:
            continue
        cell = summary.setdefault(f"{row['model']}, batch {row['batch']}", {}).setdefault(
            str(row["density"]), {}
        )
        if row["memory_ratio"] is not None:
            cell["memory" if row["name"].startswith("program") else "memory_layers"] = row["memory_ratio"]
        if row["name"].startswith("torch"):
            cell["vs_best"] = min(cell.get("vs_best", float("inf")), row["times_ours"])
        bf16 = row.get("precision") == "bf16"
        if row["name"].startswith("torch") and row["name"].endswith(dense.BF16) == bf16:
            cell["vs_dense"] = min(cell.get("vs_dense", float("inf")), row["times_ours"])
            cell["realisation"] = cell["vs_dense"] / row["flop_ratio"]
        elif row["name"] in (known := RIVALS_BF16 if bf16 else RIVALS):
            cell[known[row["name"]]] = row["times_ours"]
    return summary
