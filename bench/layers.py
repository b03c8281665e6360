"""`sparsefl bench layers`: one layer's forward and both gradients, sparse against dense PyTorch.

vs_dense        the fastest float32 layer of dense PyTorch (bench/layer_rivals.py: layouts, torch.compile),
                over ours; medians of one run
vs_best         the fastest of all, with bf16 autocast too: below 1 it beats ours
vs_csr          torch.sparse CSR over ours (linear layers)
vs_sparseprop   SparseProp, its faster kernel, over ours (where it can be imported)
auto            the fastest kernels over those that were chosen, all directions together (--kernels);
                auto_worst: of the worst shape
The summary has geometric means over the shapes of a family, and the worst shape.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from math import exp, log
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from sparse_engine.choice import plan
from sparsefl.bench import layer_rivals, sparseprop
from sparsefl.bench.running import seconds
from sparsefl.bench.timing import take_turns
from sparsefl.kernels import bitmap, use_backend, use_threads
from sparsefl.kernels import sparse_conv as sc

SPARSITIES = (0.5, 0.65, 0.8, 0.9, 0.95)
BATCHES = (32, 128)
QUICK = (0.5, 0.8, 0.95)  # sparsities of a look


@dataclass(frozen=True)
class Shape:
    """A layer: `size` is the height and width of the input image."""

    family: str
    into: int
    out: int
    size: int
    kernel: int = 3
    stride: int = 1

    @property
    def padding(self) -> int:
        return self.kernel // 2

    @property
    def name(self) -> str:
        stride = f"/{self.stride}" if self.stride > 1 else ""
        return f"{self.into}>{self.out} {self.kernel}x{self.kernel}{stride} {self.size}x{self.size}"


SHAPES = (
    *(Shape("conv3x3", c, c, s) for c, s in ((64, 32), (128, 16), (256, 8), (512, 4))),
    *(Shape("conv3x3 stride 2", c, 2 * c, s, stride=2) for c, s in ((64, 32), (128, 16), (256, 8))),
    *(Shape("conv1x1 stride 2", c, 2 * c, s, 1, 2) for c, s in ((64, 32), (128, 16), (256, 8))),
    *(Shape("linear", i, o, 1, 1) for i, o in ((1024, 4096), (4096, 4096))),
)
ODD = (  # by name only; at batch 1 too
    *(Shape("odd", i, o, 1, 1) for i, o in ((128, 512), (512, 128), (64, 64))),
    *(Shape("odd", c, c, s, 1) for c, s in ((64, 32), (256, 8))),
    Shape("odd", 3, 64, 32),
    Shape("odd", 3, 64, 32, 7, 2),
    Shape("odd", 64, 64, 16, 7),
    Shape("odd", 256, 256, 1),
)


def run(
    batches: tuple[int, ...],
    sparsities: tuple[float, ...],
    *,
    threads: int,
    repeats: int,
    family: str | None,
    kernels: bool = False,
    compiled: bool = True,
) -> Iterator[dict[str, Any]]:
    torch.set_num_threads(threads)
    with use_threads(threads):
        for batch in batches:
            for shape in (*SHAPES, *ODD):
                if family == shape.family or (family is None and shape not in ODD):
                    for sparsity in sparsities:
                        yield from _rows(shape, batch, sparsity, repeats, kernels, compiled)


def matmul_gflops(threads: int) -> float:
    """What a large matrix product reaches here: the yardstick for our rates."""
    torch.set_num_threads(threads)
    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
    timing = take_turns({"matmul": lambda: a @ b}, repeats=10, burst=1)["matmul"]
    return 2 * 1024**3 / timing.best / 1e9


def _rows(
    shape: Shape, batch: int, sparsity: float, repeats: int, kernels: bool, compiled: bool
) -> Iterator[dict[str, Any]]:
    draw = torch.Generator().manual_seed(0)
    mask = torch.rand(shape.out, shape.into, shape.kernel, shape.kernel, generator=draw) >= sparsity
    how = {"stride": shape.stride, "padding": (shape.padding, shape.padding)}
    conv = sc.Conv(
        bitmap.from_mask(mask.view(-1)), shape.out, shape.into, (shape.kernel, shape.kernel), **how
    )
    weight = torch.randn(mask.shape, generator=draw) * mask
    values = weight[mask]
    images = torch.randn(batch, shape.into, shape.size, shape.size, generator=draw)
    gradient = torch.randn(F.conv2d(images, weight, **how).shape, generator=draw)
    x, dy = (t.permute(1, 2, 3, 0).contiguous() for t in (images, gradient))
    size = (shape.size, shape.size)
    directions: dict[str, Callable[[str], object]] = {
        "forward": lambda kernel: sc.forward(conv, values, x, kernel=kernel),
        "input_gradient": lambda kernel: sc.input_gradient(conv, values, dy, size, kernel=kernel),
        "weight_gradient": lambda kernel: sc.weight_gradient(conv, x, dy, kernel=kernel),
    }
    chosen = {d: plan.current().kernel(conv, d, *size, batch) for d in directions}
    contestants = {f"sparsefl {d}": partial(run, chosen[d]) for d, run in directions.items()}
    linear = shape.kernel == shape.size == 1
    contestants |= layer_rivals.rivals(images, weight, gradient, how, linear=linear, compiled=compiled)
    if kernels:
        contestants |= {
            f"kernel {k} {d}": partial(run, k) for d, run in directions.items() for k in sc.candidates(conv)
        }
    if linear:
        flat = [t[:, :, 0, 0] for t in (weight, images, gradient)]
        contestants |= _csr(*flat) | sparseprop.linear(*flat)
    else:
        contestants |= sparseprop.conv(weight, images, gradient, stride=shape.stride, padding=shape.padding)
    _check(conv, values, x, dy, shape)
    timings = take_turns(contestants, repeats=repeats, burst=1)
    ours = sum(t.median for name, t in timings.items() if name.startswith("sparsefl"))
    flop = 2 * conv.bitmap.nnz * gradient.shape[2] * gradient.shape[3] * batch
    for name, timing in timings.items():
        mine = name.startswith("sparsefl")
        yield {
            "family": shape.family,
            "shape": shape.name,
            "batch": batch,
            "sparsity": sparsity,
            "name": name,
            "kernel": chosen[name.removeprefix("sparsefl ")] if mine else None,
            "median_ms": timing.median * 1e3,
            "spread": timing.spread,
            "gflops": flop / timing.median / 1e9 if mine else None,
            "times_ours": None if mine or name.startswith("kernel ") else timing.median / ours,
        }


def _csr(weight: Tensor, x: Tensor, dy: Tensor) -> dict[str, Callable[[], object]]:
    """torch.sparse: two products, and a dense weight gradient (its sampled product takes minutes here)."""
    w, wt = weight.to_sparse_csr(), weight.t().contiguous().to_sparse_csr()
    xt, dyt, x = x.t().contiguous(), dy.t().contiguous(), x.contiguous()
    return {"torch.sparse CSR": lambda: (w @ xt, wt @ dyt, dyt @ x)}


def _check(conv: sc.Conv, values: Tensor, x: Tensor, dy: Tensor, shape: Shape) -> None:
    size = (shape.size, shape.size)

    def all_three() -> tuple[Tensor, ...]:
        return (
            sc.forward(conv, values, x),
            sc.input_gradient(conv, values, dy, size),
            sc.weight_gradient(conv, x, dy),
        )

    with use_backend("reference"):
        expected = all_three()
    for name, ours, theirs in zip(("y", "dx", "dv"), all_three(), expected, strict=True):
        error = ((ours - theirs).norm() / theirs.norm()).item()
        if not error < 1e-4:
            raise AssertionError(f"{shape.name}: {name} is off by {error:.2g}: a wrong result gets no time")


def told(row: dict[str, Any]) -> str:
    """A row in a line, for progress."""
    case = f"{row['shape']}, batch {row['batch']}, sparsity {row['sparsity']:g}"
    return f"{case}: {row['name']} {seconds(row['median_ms'])}"


def summarise(rows: list[dict[str, Any]]) -> dict[str, dict[str, dict[str, float]]]:
    """{family, batch: {sparsity: {"vs_dense": geometric mean, "worst": ..., "vs_csr": ..., ...}}}"""
    ratios: dict[tuple[str, str, str], dict[str, float]] = {}
    for row in rows:
        if row["times_ours"] is not None:
            group = (f"{row['family']}, batch {row['batch']}", str(row["sparsity"]))
            for kind in _kinds(row["name"]):
                best = ratios.setdefault((*group, kind), {})
                best[row["shape"]] = min(best.get(row["shape"], float("inf")), row["times_ours"])
    summary: dict[str, dict[str, dict[str, float]]] = {}
    for (group_, sparsity), by_case in _auto(rows).items():
        cell = summary.setdefault(group_, {}).setdefault(sparsity, {})
        cell["auto"] = exp(sum(map(log, by_case)) / len(by_case))
        cell["auto_worst"] = min(by_case)
    for (family, sparsity, kind), by_shape in ratios.items():
        cell = summary.setdefault(family, {}).setdefault(sparsity, {})
        cell[kind] = exp(sum(map(log, by_shape.values())) / len(by_shape))
        if kind == "vs_dense":
            cell["worst"] = min(by_shape.values())
    return summary


def _kinds(name: str) -> tuple[str, ...]:
    if name.startswith("SparseProp"):
        return ("vs_sparseprop",)
    if "CSR" in name:
        return ("vs_csr",)
    return ("vs_best",) if name.endswith(layer_rivals.BF16) else ("vs_dense", "vs_best")


def _auto(rows: list[dict[str, Any]]) -> dict[tuple[str, str], list[float]]:
    """{(family and batch, sparsity): the best kernels' time over the chosen ones', by shape}"""
    best: dict[tuple[str, str, str], dict[str, float]] = {}
    ours: dict[tuple[str, str, str], float] = {}
    for row in rows:
        case = (f"{row['family']}, batch {row['batch']}", str(row["sparsity"]), row["shape"])
        who, *kernel_and_direction = row["name"].split()
        if who == "sparsefl":
            ours[case] = ours.get(case, 0.0) + row["median_ms"]
        elif who == "kernel":
            times = best.setdefault(case, {})
            direction = kernel_and_direction[-1]
            times[direction] = min(times.get(direction, float("inf")), row["median_ms"])
    found: dict[tuple[str, str], list[float]] = {}
    for case, times in best.items():
        found.setdefault(case[:2], []).append(sum(times.values()) / ours[case])
    return found
