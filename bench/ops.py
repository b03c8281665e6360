"""`sparsefl bench ops`: the bandwidth-bound kernels on a ResNet18-sized model against PyTorch and scipy.

vs_torch         fastest rival's median over ours, both from the same run, taking turns
bandwidth_share  the bytes that must move, over our time, over the bandwidth of a copy measured in that run
                 (above 1 where the packed model fits into a cache that the copied array does not)
vs_torch_cold    vs_torch when every contestant finds the caches full of its rivals' data
"""

from collections.abc import Callable, Iterator
from math import prod
from typing import Any

import numpy as np
import scipy.sparse
import torch

from sparsefl.bench import cases, rivals
from sparsefl.bench.running import seconds
from sparsefl.bench.timing import take_turns
from sparsefl.kernels import bitmap, use_backend, use_threads
from sparsefl.kernels.drift import drift
from sparsefl.kernels.masked_average import masked_average
from sparsefl.kernels.masked_sgd import masked_sgd_
from sparsefl.kernels.pack import pack, unpack
from sparsefl.kernels.pqi import pqi
from sparsefl.kernels.select import select

NEIGHBOURS = 10
Contest = tuple[
    str, int | None, dict[str, Callable[[], object]]
]  # operation, minimal bytes, "sparsefl" and rivals


def run(
    densities: tuple[float, ...], *, threads: int, repeats: int, only: str | None
) -> Iterator[dict[str, Any]]:
    """A row for every operation, density and contestant."""
    torch.set_num_threads(threads)
    with use_threads(threads):
        for density in densities:
            for op, least_bytes, contestants in contests(density, only):
                big = torch.ones(10_992_320)
                other = torch.empty_like(big)
                contestants["copy"] = lambda: other.copy_(big)  # noqa: B023
                timings = take_turns(contestants, repeats=repeats)
                cold = take_turns(contestants, repeats=repeats, burst=0)
                bandwidth = 2 * 4 * big.numel() / timings.pop("copy").median
                ours = timings["sparsefl"].median
                for name, timing in timings.items():
                    yield {
                        "op": op,
                        "density": density,
                        "name": name,
                        "median_ms": timing.median * 1e3,
                        "best_ms": timing.best * 1e3,
                        "spread": timing.spread,
                        "times_ours": timing.median / ours,
                        "cold_ms": cold[name].median * 1e3,
                        "times_ours_cold": cold[name].median / cold["sparsefl"].median,
                        "least_bytes": least_bytes if name == "sparsefl" else None,
                        "bandwidth_share": least_bytes / ours / bandwidth
                        if name == "sparsefl" and least_bytes
                        else None,
                        "copy_gb_s": bandwidth / 1e9,
                    }


def told(row: dict[str, Any]) -> str:
    """A row in a line, for progress."""
    return f"{row['op']}, density {row['density']:g}: {row['name']} {seconds(row['median_ms'])}"


def summarise(rows: list[dict[str, Any]]) -> dict[str, dict[str, dict[str, float]]]:
    """{op: {density: {"vs_torch": ..., "bandwidth_share": ...}}}; select and csr name their rivals."""
    summary: dict[str, dict[str, dict[str, float]]] = {}
    for row in rows:
        cell = summary.setdefault(row["op"], {}).setdefault(str(row["density"]), {})
        if row["name"] == "sparsefl":
            if row["bandwidth_share"]:
                cell["bandwidth_share"] = row["bandwidth_share"]
            continue
        key = "vs_scipy" if row["name"].startswith("scipy") else "vs_torch"
        for suffix, measured in (("", "times_ours"), ("_cold", "times_ours_cold")):
            cell[key + suffix] = min(cell.get(key + suffix, float("inf")), row[measured])
        if row["op"] == "select":
            cell["vs_" + row["name"].removeprefix("torch.")] = row["times_ours"]
    return summary


def contests(density: float, only: str | None) -> Iterator[Contest]:
    shapes = cases.resnet18_shapes()
    own = cases.model(shapes, density, seed=0)
    for op, make in OPERATIONS.items():
        if only is None or only == op:
            yield make(own, shapes, density)


def _sgd(own: cases.Model, *_: Any) -> Contest:
    n, numbers = own.bitmap.nnz, {"lr": 1e-3, "weight_decay": 5e-4}
    w, g = own.packed.values.clone(), torch.randn(n)
    _check(lambda: masked_sgd_(w, g, **numbers), w)
    theirs = rivals.sgd(own.dense.clone(), torch.randn_like(own.dense), own.mask.float(), 1e-3, 5e-4)
    return "masked_sgd_", 12 * n, {"sparsefl": lambda: masked_sgd_(w, g, **numbers), **theirs}


def _momentum(own: cases.Model, *_: Any) -> Contest:
    n, numbers = own.bitmap.nnz, {"lr": 1e-3, "momentum": 0.9, "weight_decay": 5e-4}
    w, g, u = own.packed.values.clone(), torch.randn(n), torch.randn(n)
    _check(lambda: masked_sgd_(w, g, u, **numbers), w, u)
    theirs = rivals.momentum_sgd(
        own.dense.clone(), torch.randn_like(own.dense), own.dense.clone(), own.mask.float(), 1e-3, 0.9, 5e-4
    )
    return "masked_sgd_ momentum", 20 * n, {"sparsefl": lambda: masked_sgd_(w, g, u, **numbers), **theirs}


def _through(own: cases.Model, *_: Any) -> Contest:
    """The gradient comes dense: only its stored entries are read, but whole cache lines of it arrive."""
    numbers = {"lr": 1e-3, "weight_decay": 5e-4, "through": own.bitmap}
    w, g = own.packed.values.clone(), torch.randn_like(own.dense)
    _check(lambda: masked_sgd_(w, g, **numbers), w)
    theirs = rivals.sgd(own.dense.clone(), torch.randn_like(own.dense), own.mask.float(), 1e-3, 5e-4)
    least = 8 * own.bitmap.nnz + 4 * g.numel() + 8 * own.bitmap.words.numel()
    return "masked_sgd_ through", least, {"sparsefl": lambda: masked_sgd_(w, g, **numbers), **theirs}


def _average(own: cases.Model, shapes: dict, density: float) -> Contest:
    models = [own, *(cases.model(shapes, density, seed=1 + j) for j in range(NEIGHBOURS))]
    packed, out = [m.packed for m in models], torch.empty(own.bitmap.nnz)
    _check(lambda: masked_average(own.bitmap, packed, out), out)
    mean, dense_out = masked_average(own.bitmap, packed), torch.empty_like(own.dense)
    theirs = rivals.average([m.dense for m in models], [m.mask for m in models], dense_out)
    for name, rival in theirs.items():
        rival()
        _same(mean, dense_out[own.mask], name)
    least = sum(4 * m.bitmap.nnz + 8 * m.bitmap.words.numel() for m in models) + 4 * own.bitmap.nnz
    return "masked_average", least, {"sparsefl": lambda: masked_average(own.bitmap, packed, out), **theirs}


def _pqi(own: cases.Model, shapes: dict, _: float) -> Contest:
    values, offsets = own.packed.values, own.bitmap.offsets
    with use_backend("reference"):
        expected = pqi(values, offsets).pqi
    _same(pqi(values, offsets).pqi, expected, "sparsefl")
    layers = own.dense.split([prod(shape) for shape in shapes.values()])
    theirs = rivals.pq_sums(layers, torch.empty_like(own.dense))
    return "pqi", 4 * own.bitmap.nnz, {"sparsefl": lambda: pqi(values, offsets), **theirs}


def _select(own: cases.Model, *_: Any) -> Contest:
    values, pattern = own.packed.values, own.bitmap
    k = pattern.counts * 3 // 10
    with use_backend("reference"):
        expected = select(values, pattern, k).words
    if not torch.equal(select(values, pattern, k).words, expected):
        raise AssertionError("select differs from the reference: no time")
    theirs = rivals.select(values.split(pattern.counts.tolist()), k.tolist())
    return "select", None, {"sparsefl": lambda: select(values, pattern, k), **theirs}


def _csr(own: cases.Model, shapes: dict, _: float) -> Contest:
    """Rows, columns and the permutation between them, from the bitmap; scipy starts from dense."""
    parts = [own.bitmap.segment(i) for i in range(len(shapes))]
    rows = [shape[0] for shape in shapes.values()]
    sizes = [prod(shape) for shape in shapes.values()]
    matrices = [x.view(n, -1).numpy() for x, n in zip(own.dense.split(sizes), rows, strict=True)]

    def ours() -> list:
        return [(bitmap.csr(part, n), bitmap.transpose(part, n)) for part, n in zip(parts, rows, strict=True)]

    def theirs() -> list:
        return [(a := scipy.sparse.csr_matrix(x), a.T.tocsr()) for x in matrices]

    for (by_row, by_column), (a, at) in zip(ours(), theirs(), strict=True):
        same = np.array_equal(by_row.columns, a.indices) and np.array_equal(by_column.rows, at.indices)
        if not same or not np.array_equal(a.data[by_column.order], at.data):
            raise AssertionError("csr differs from scipy: no time")
    return "csr", None, {"sparsefl": ours, "scipy": theirs}


def _pack(own: cases.Model, *_: Any) -> Contest:
    out, index = torch.empty(own.bitmap.nnz), own.mask.nonzero().view(-1)
    _check(lambda: pack(own.dense, own.bitmap, out), out)
    return (
        "pack",
        4 * own.dense.numel() + 8 * own.bitmap.words.numel() + 4 * out.numel(),
        {
            "sparsefl": lambda: pack(own.dense, own.bitmap, out),
            "torch mask": lambda: torch.masked_select(own.dense, own.mask),
            "torch index": lambda: torch.index_select(own.dense, 0, index, out=out),
        },
    )


def _unpack(own: cases.Model, *_: Any) -> Contest:
    values, out, index = own.packed.values, torch.empty_like(own.dense), own.mask.nonzero().view(-1)
    _check(lambda: unpack(values, own.bitmap, out), out)
    return (
        "unpack",
        4 * out.numel() + 8 * own.bitmap.words.numel() + 4 * values.numel(),
        {
            "sparsefl": lambda: unpack(values, own.bitmap, out),
            "torch mask": lambda: out.zero_().masked_scatter_(own.mask, values),
            "torch index": lambda: out.zero_().index_copy_(0, index, values),
        },
    )


def _drift(own: cases.Model, shapes: dict, density: float) -> Contest:
    other = cases.model(shapes, density, seed=99)
    a, b = own.packed, other.packed
    with use_backend("reference"):
        expected = drift(a, b)
    _same(drift(a, b), expected, "sparsefl")
    sizes, difference = [prod(shape) for shape in shapes.values()], torch.empty_like(own.dense)

    def theirs() -> list:
        torch.sub(own.dense, other.dense, out=difference)
        return [torch.linalg.vector_norm(x) for x in difference.split(sizes)]

    least = 8 * own.bitmap.nnz + 16 * own.bitmap.words.numel()
    return "drift", least, {"sparsefl": lambda: drift(a, b), "torch": theirs}


def _check(run: Callable[[], object], *changed: torch.Tensor) -> None:
    """The native result equals the reference; leaves the tensors as they were."""
    before = [x.clone() for x in changed]
    run()
    ours = [x.clone() for x in changed]
    for x, old in zip(changed, before, strict=True):
        x.copy_(old)
    with use_backend("reference"):
        run()
    for x, mine, old in zip(changed, ours, before, strict=True):
        _same(mine, x, "sparsefl")
        x.copy_(old)


def _same(ours: torch.Tensor, expected: torch.Tensor, name: str) -> None:
    if not torch.allclose(ours, expected, rtol=1e-4, atol=1e-6):
        raise AssertionError(
            f"{name}: a wrong result gets no time (off by {(ours - expected).abs().max():.3g})"
        )


OPERATIONS: dict[str, Callable[..., Contest]] = {
    "masked_sgd_": _sgd,
    "masked_sgd_ momentum": _momentum,
    "masked_sgd_ through": _through,
    "masked_average": _average,
    "pqi": _pqi,
    "select": _select,
    "csr": _csr,
    "pack": _pack,
    "unpack": _unpack,
    "drift": _drift,
}
