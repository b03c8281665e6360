"""`sparsefl bench isa`: every kernel on every instruction set of this machine, in turns in one process.

avx2_over_baseline, avx512_over_avx2   times faster than on the instruction set before it: medians of one run;
                                       geometric means over the cases of a kernel and direction
..._worst                              the worst case among them: below 1, the wider vectors lose

Results are compared with the reference on each instruction set first; one that is wrong gets no time.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from math import exp, log
from typing import Any

import torch
from torch import Tensor

from sparsefl.bench import isa_around, ops
from sparsefl.bench.layers import Shape
from sparsefl.bench.running import seconds
from sparsefl.bench.timing import take_turns
from sparsefl.kernels import bitmap, native, use_backend, use_threads
from sparsefl.kernels import sparse_conv as sc
from sparsefl.kernels.native import use_isa

GROUPS = ("conv", "linear", "around", "models")
DENSITIES = (0.5, 0.2, 0.05)  # of the sparse kernel
CONVS = (
    *(Shape("conv", c, c, s) for c, s in ((64, 32), (256, 8), (512, 4))),
    Shape("conv", 256, 512, 8, stride=2),
    Shape("conv", 64, 128, 32, 1, 2),
    Shape("conv", 128, 256, 16, 1),
)
LINEARS = (Shape("linear", 128, 512, 1, 1), Shape("linear", 4096, 1024, 1, 1))
BATCHES = (1, 8, 32, 128)  # of linear layers
CONV_BATCH = 32
TOLERANCE = 1e-4  # of the norm: Winograd's sums are the least exact


@dataclass(frozen=True)
class Case:
    """A call that returns its result, or the tensors of it."""

    kernel: str
    direction: str
    case: str
    density: float
    run: Callable[[], Any]


def run(groups: tuple[str, ...], densities: tuple[float, ...], *, repeats: int) -> Iterator[dict[str, Any]]:
    """A row per kernel, direction, case, density and instruction set."""
    torch.set_num_threads(1)
    with use_threads(1):
        for group in groups:
            for case in _CASES[group](densities):
                _check(case)
                yield from _rows(case, repeats)


def _rows(case: Case, repeats: int) -> Iterator[dict[str, Any]]:
    timings = take_turns(
        {isa: partial(_on, isa, case.run) for isa in native.isas()}, repeats=repeats, burst=2
    )
    for isa, timing in timings.items():
        yield {
            "kernel": case.kernel,
            "direction": case.direction,
            "case": case.case,
            "density": case.density,
            "isa": isa,
            "median_ms": timing.median * 1e3,
            "spread": timing.spread,
        }


def _on(isa: str, run: Callable[[], object]) -> object:
    with use_isa(isa):
        return run()


def _check(case: Case) -> None:
    with use_backend("reference"):
        expected = _tensors(case.run())
    for isa in native.isas():
        for ours, theirs in zip(_tensors(_on(isa, case.run)), expected, strict=True):
            error = float((ours.double() - theirs.double()).norm() / theirs.double().norm().clamp(min=1e-30))
            if not error < TOLERANCE:
                where = f"{case.kernel} {case.direction}, {case.case}, {isa}"
                raise AssertionError(f"{where}: off by {error:.2g}: a wrong result gets no time")


def _tensors(result: Any) -> list[Tensor]:
    """The tensors and numbers in a result."""
    if isinstance(result, Tensor):
        return [result]
    if isinstance(result, float | int):
        return [torch.tensor(float(result))]
    return [x for part in result or () if part is not None for x in _tensors(part)]


def _convs(densities: tuple[float, ...]) -> Iterator[Case]:
    for shape in CONVS:
        yield from _layer(shape, CONV_BATCH, densities)


def _linears(densities: tuple[float, ...]) -> Iterator[Case]:
    for shape in LINEARS:
        for batch in BATCHES:
            yield from _layer(shape, batch, densities)


def _layer(shape: Shape, batch: int, densities: tuple[float, ...]) -> Iterator[Case]:
    draw = torch.Generator().manual_seed(0)
    for density in (1.0, *densities):
        mask = torch.rand(shape.out * shape.into * shape.kernel**2, generator=draw) < density
        conv = sc.Conv(
            bitmap.from_mask(mask),
            shape.out,
            shape.into,
            (shape.kernel,) * 2,
            stride=shape.stride,
            padding=(shape.padding,) * 2,
        )
        size = shape.size, shape.size
        values = torch.randn(int(mask.sum()), generator=draw)
        x = torch.randn(shape.into, *size, batch, generator=draw)
        dy = torch.randn(shape.out, *conv.output_size(*size), batch, generator=draw)
        dense = [k for k in sc.candidates(conv, native=True) if k != "sparse" and not sc.split(k)[1]]
        kernels = dense if density == 1 else ["sparse"]
        for kernel in kernels:
            name = kernel if shape.family == "conv" else f"{kernel} linear"
            what = f"{shape.name}, batch {batch}"
            runs = {
                "forward": partial(sc.forward, conv, values, x, kernel=kernel),
                "input_gradient": partial(sc.input_gradient, conv, values, dy, size, kernel=kernel),
                "weight_gradient": partial(sc.weight_gradient, conv, x, dy, kernel=kernel),
            }
            yield from (Case(name, direction, what, density, call) for direction, call in runs.items())


def _around(_: tuple[float, ...]) -> Iterator[Case]:
    for kernel, direction, case, call in isa_around.calls():
        yield Case(kernel, direction, case, 1.0, call)


def _models(densities: tuple[float, ...]) -> Iterator[Case]:
    """The operations of `bench ops`, which compares them with the reference itself."""
    density = min(densities, key=lambda d: abs(d - 0.2))
    found: dict[str, dict[str, Callable[[], object]]] = {}
    for isa in native.isas():
        with use_isa(isa):
            for op, _bytes, contestants in ops.contests(density, None):
                found.setdefault(op, {})[isa] = contestants["sparsefl"]
    for op, by_isa in found.items():

        def call(by_isa: dict[str, Callable[[], object]] = by_isa) -> None:
            by_isa[native.isa()]()

        yield Case(op, "", "ResNet18", density, call)


_CASES: dict[str, Callable[[tuple[float, ...]], Iterator[Case]]] = {
    "conv": _convs,
    "linear": _linears,
    "around": _around,
    "models": _models,
}


def told(row: dict[str, Any]) -> str:
    """A row in a line, for progress."""
    what = f"{row['kernel']} {row['direction']}, {row['case']}, density {row['density']:g}"
    return f"{what}: {row['isa']} {seconds(row['median_ms'])}"


def summarise(rows: list[dict[str, Any]]) -> dict[str, dict[str, dict[str, float]]]:
    """{kernel and direction: {density: {"avx512_over_avx2": geometric mean, "..._worst": least}}}"""
    cases: dict[tuple[str, str, str], dict[str, float]] = {}
    for row in rows:
        key = f"{row['kernel']} {row['direction']}".strip(), str(row["density"]), row["case"]
        cases.setdefault(key, {})[row["isa"]] = row["median_ms"]
    ratios: dict[tuple[str, str], dict[str, list[float]]] = {}
    for (name, density, _), times in cases.items():
        found = ratios.setdefault((name, density), {})
        for slower, faster in pairwise(times):
            found.setdefault(f"{faster}_over_{slower}", []).append(times[slower] / times[faster])
    summary: dict[str, dict[str, dict[str, float]]] = {}
    for (name, density), by_pair in ratios.items():
        cell = summary.setdefault(name, {}).setdefault(density, {})
        for pair, all_ in by_pair.items():
            cell[pair] = exp(sum(map(log, all_)) / len(all_))
            cell[f"{pair}_worst"] = min(all_)
    return summary
