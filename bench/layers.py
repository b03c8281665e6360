"""`sparsefl bench layers`: one layer's forward and both gradients, sparse against dense PyTorch.

vs_dense        the faster of PyTorch's contiguous and channels-last layouts, over ours; medians of one run
vs_csr          torch.sparse CSR over ours (linear layers)
vs_sparseprop   SparseProp, its faster kernel, over ours (where it can be imported)
auto       the fastest of our kernels over the one that was chosen, all directions together (--kernels)
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
from sparsefl.bench import sparseprop
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


def run(
    batches: tuple[int, ...],
    sparsities: tuple[float, ...],
    *,
    threads: int,
    repeats: int,
    family: str | None,
    kernels: bool = False,
) -> Iterator[dict[str, Any]]:
    torch.set_num_threads(threads)
    with use_threads(threads):
        for batch in batches:
            for shape in SHAPES:
                if family in (None, shape.family):
                    for sparsity in sparsities:
                        yield from _rows(shape, batch, sparsity, repeats, kernels)


def matmul_gflops(threads: int) -> float:
    """What a large matrix product reaches here: the yardstick for our rates."""
    torch.set_num_threads(threads)
    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
    timing = take_turns({"matmul": lambda: a @ b}, repeats=10, burst=1)["matmul"]
    return 2 * 1024**3 / timing.best / 1e9


def _rows(shape: Shape, batch: int, sparsity: float, repeats: int, kernels: bool) -> Iterator[dict[str, Any]]:
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
    contestants |= _dense(shape, images, weight, gradient)
    if kernels:
        contestants |= {
            f"{k} {d}": partial(run, k) for d, run in directions.items() for k in sc.candidates(conv)
        }
    if shape.family == "linear":
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
            "times_ours": None if mine or name.split()[0] in sc.KERNELS else timing.median / ours,
        }


def _dense(shape: Shape, images: Tensor, weight: Tensor, gradient: Tensor) -> dict[str, Callable[[], object]]:
    def both(images: Tensor, weight: Tensor, gradient: Tensor) -> None:
        s, p = [shape.stride] * 2, [shape.padding] * 2
        F.conv2d(images, weight, stride=s, padding=p)
        torch.ops.aten.convolution_backward(
            gradient, images, weight, None, s, p, [1, 1], False, [0, 0], 1, [True, True, False]
        )

    if shape.family == "linear":
        w, a, g = (
            weight[:, :, 0, 0].contiguous(),
            images[:, :, 0, 0].contiguous(),
            gradient[:, :, 0, 0].contiguous(),
        )
        return {"torch linear": lambda: (a @ w.t(), g @ w, g.t() @ a)}
    last = [t.to(memory_format=torch.channels_last) for t in (images, weight, gradient)]
    return {
        "torch": lambda: both(images, weight, gradient),
        "torch channels_last": lambda: both(*last),
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
            group = (f"{row['family']}, batch {row['batch']}", str(row["sparsity"]), _kind(row["name"]))
            best = ratios.setdefault(group, {})
            best[row["shape"]] = min(best.get(row["shape"], float("inf")), row["times_ours"])
    summary: dict[str, dict[str, dict[str, float]]] = {}
    for (group_, sparsity), by_case in _auto(rows).items():
        cell = summary.setdefault(group_, {}).setdefault(sparsity, {})
        cell["auto"] = exp(sum(map(log, by_case)) / len(by_case))
    for (family, sparsity, kind), by_shape in ratios.items():
        cell = summary.setdefault(family, {}).setdefault(sparsity, {})
        cell[kind] = exp(sum(map(log, by_shape.values())) / len(by_shape))
        if kind == "vs_dense":
            cell["worst"] = min(by_shape.values())
    return summary


def _kind(name: str) -> str:
    if name.startswith("SparseProp"):
        return "vs_sparseprop"
    return "vs_csr" if "CSR" in name else "vs_dense"


def _auto(rows: list[dict[str, Any]]) -> dict[tuple[str, str], list[float]]:
    """{(family and batch, sparsity): the best kernels' time over the chosen ones', by shape}"""
    best: dict[tuple[str, str, str], dict[str, float]] = {}
    ours: dict[tuple[str, str, str], float] = {}
    for row in rows:
        case = (f"{row['family']}, batch {row['batch']}", str(row["sparsity"]), row["shape"])
        who, _, direction = row["name"].partition(" ")
        if who == "sparsefl":
            ours[case] = ours.get(case, 0.0) + row["median_ms"]
        elif who in sc.KERNELS:
            times = best.setdefault(case, {})
            times[direction] = min(times.get(direction, float("inf")), row["median_ms"])
    found: dict[tuple[str, str], list[float]] = {}
    for case, times in best.items():
        found.setdefault(case[:2], []).append(sum(times.values()) / ours[case])
    return found
