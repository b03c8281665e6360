"""`sparsefl bench WHAT`: the options of every benchmark. What one needs is imported when it runs."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from fl.cli.commands import Command, application
from fl.cli.exits import guarded
from fl.errors import ConfigError
from sparsefl.bench import options
from sparsefl.bench.options import (
    Append,
    Batches,
    CpuTime,
    Json,
    Models,
    Plot,
    Quick,
    Repeats,
    Threads,
    Values,
    counts,
    names,
    shares,
    sparsities,
)

app = application("Measure against rivals, or count; every result is checked before it is timed.")


def main(argv: Sequence[str]) -> int:
    """The exit code of `sparsefl bench` with these arguments."""
    try:
        app([*argv], prog_name="sparsefl bench")
    except SystemExit as done:
        return int(done.code or 0)
    return 0


def _run(work: Callable[[], int]) -> None:
    """Does the work; what goes wrong becomes a sentence and an exit code."""
    from sparsefl.bench import report

    raise typer.Exit(guarded(report.console(), work))


@app.command(cls=Command)
def ops(
    op: Annotated[
        str | None, Option(metavar="NAME", help="one operation only, such as masked_average")
    ] = None,
    density: Annotated[Values, options.density("0.5,0.2,0.1")] = None,
    threads: Threads = 1,
    repeats: Repeats = None,
    aot: Annotated[
        bool, Option("--aot", help="registers, spills and shared memory of the Triton kernels instead")
    ] = False,
    quick: Quick = False,
    json: Json = None,
) -> None:
    """The bandwidth-bound kernels against PyTorch and scipy: `sparsefl bench ops --density 0.5,0.2`."""
    from sparsefl.bench import cases, running
    from sparsefl.bench import ops as work

    def run() -> int:
        if aot:
            return running.aot(json)
        densities = shares("--density", density, cases.DENSITIES[:1] if quick else cases.DENSITIES)
        only = names("--op", op and [op], (), work.OPERATIONS)
        times = repeats or (2 if quick else 7)
        rows = work.run(densities, threads=threads, repeats=times, only=only[0] if only else None)
        columns = {"op": "", "density": "", "name": "", "median_ms": ".3f", "spread": ".2f",
                   "times_ours": ".2f", "times_ours_cold": ".2f", "bandwidth_share": ".2f"}  # fmt: skip
        found = list(running.shown(rows, work.told))
        return running.finish(found, columns, work.summarise, json, threads=threads, repeats=times)

    _run(run)


@app.command(cls=Command)
def layers(
    family: Annotated[
        str | None, Option(metavar="NAME", help="one kind of layer only, such as conv3x3, linear or odd")
    ] = None,
    batch: Batches = None,
    sparsity: Annotated[
        Values,
        Option(metavar="S,...", help="shares of the weights not stored; default: 0.5,0.65,0.8,0.9,0.95"),
    ] = None,
    kernels: Annotated[bool, Option("--kernels", help="every kernel too, to see what auto chose")] = False,
    threads: Threads = 1,
    repeats: Repeats = None,
    quick: Quick = False,
    json: Json = None,
) -> None:
    """Convolutions and linear layers, forward and both gradients, against dense PyTorch."""
    from sparsefl.bench import layers as work
    from sparsefl.bench import running

    def run() -> int:
        default = (work.BATCHES[:1], work.QUICK) if quick else (work.BATCHES, work.SPARSITIES)
        batches, some = counts("--batch", batch, default[0]), sparsities("--sparsity", sparsity, default[1])
        families = names(
            "--family", family and [family], (), dict.fromkeys(s.family for s in (*work.SHAPES, *work.ODD))
        )
        times = repeats or (2 if quick else 5)
        only = families[0] if families else None
        rows = work.run(batches, some, threads=threads, repeats=times, family=only, kernels=kernels,
                        compiled=not quick)  # fmt: skip
        columns = {"shape": "", "batch": "", "sparsity": "", "name": "", "kernel": "", "median_ms": ".2f",
                   "gflops": ".0f", "times_ours": ".2f"}  # fmt: skip
        how = {"threads": threads, "repeats": times, "matmul_gflops": work.matmul_gflops(threads)}
        return running.finish(list(running.shown(rows, work.told)), columns, work.summarise, json, **how)

    _run(run)


@app.command(cls=Command)
def isa(
    group: Annotated[
        Values, Option(metavar="NAME,...", help="kernels of conv, linear, around, models; default: all")
    ] = None,
    density: Annotated[Values, options.density("0.5,0.2,0.05")] = None,
    repeats: Repeats = None,
    quick: Quick = False,
    json: Json = None,
) -> None:
    """Every kernel on each instruction set of this machine, in turns: where wider vectors lose."""
    from sparsefl.bench import isa as work
    from sparsefl.bench import running

    def run() -> int:
        groups = names("--group", group, work.GROUPS, work.GROUPS)
        densities = shares("--density", density, work.DENSITIES[:1] if quick else work.DENSITIES)
        times = repeats or (2 if quick else 5)
        columns = {"kernel": "", "direction": "", "case": "", "density": "", "isa": "", "median_ms": ".3f"}
        found = list(running.shown(work.run(groups, densities, repeats=times), work.told))
        title = "instruction sets in turns"
        return running.finish(found, columns, work.summarise, json, repeats=times, title=title)

    _run(run)


@app.command(cls=Command)
def models(
    model: Models = None,
    batch: Batches = None,
    density: Annotated[Values, options.density("0.5,0.35,0.2,0.1")] = None,
    threads: Threads = 1,
    repeats: Repeats = None,
    cpu_time: CpuTime = False,
    energy: Annotated[
        bool,
        Option("--energy", help="joules per step of each too, in windows of 10 s: minutes per case"),
    ] = False,
    precision: Annotated[str, Option(help="of ours: fp32 or bf16; vs_dense has the same precision")] = "fp32",
    model_only: Annotated[
        bool,
        Option("--model-only", help="nothing is measured: what a model of --device says, and paper runs"),
    ] = False,
    device: Annotated[str | None, Option(metavar="CARD", help="with --model-only: rtx4090")] = None,
    quick: Quick = False,
    json: Json = None,
    append: Append = False,
) -> None:
    """Whole training steps against dense PyTorch: `sparsefl bench models --model vgg11 --batch 32,128`.

    Networks that are not ours, by name: mobilenet, resnet20, mixer, vit, encoder.
    """
    if model_only or device is not None:
        from sparsefl.bench import modelled

        given = model_only, device, model, batch, density, json
        _run(lambda: modelled.command(*given))
    from fl.run.meters.energy import How
    from sparsefl.bench import energy as meters
    from sparsefl.bench import models as work
    from sparsefl.bench import running

    def run() -> int:
        default = work.QUICK if quick else (tuple(work.MODELS), work.BATCHES, work.DENSITIES)
        chosen = names("--model", model, default[0], work.MODELS | work.OTHERS)
        batches, densities = counts("--batch", batch, default[1]), shares("--density", density, default[2])
        times = repeats or (1 if quick else 3)
        if cpu_time and threads > 1:
            raise ConfigError("--cpu-time: expected --threads 1, whose time it is, got more")
        clock = time.process_time if cpu_time else time.perf_counter
        if precision not in work.PRECISIONS:
            raise ConfigError(f"--precision: expected one of {', '.join(work.PRECISIONS)}, got {precision!r}")
        how = {
            "threads": threads,
            "repeats": times,
            "clock": clock,
            "memory": not quick,
            "compiled": not quick,
            "precision": precision,
        }
        columns = {"model": "", "batch": "", "density": "", "name": "", "median_ms": ".1f",
                   "times_ours": ".2f", "skipped": ""}  # fmt: skip
        more: dict[str, Any] = {"ratios_of": "cpu_ms" if cpu_time else "median_ms", "append": append}
        if precision != "fp32":
            more["precision"] = precision
        if energy:
            with meters.Session(How(), meters.SHORTEST_S, needed=False) as session:
                session.tell()
                joules = partial(session.columns, blocks=times)
                rows = work.run(chosen, batches, densities, joules=joules, **how)
                found = session.ended(list(running.shown(rows, work.told)))
            columns |= dict.fromkeys((*meters.SHOWN[:2], "energy_note"), "")
            more["energy"] = session.facts
        else:
            found = list(running.shown(work.run(chosen, batches, densities, **how), work.told))
        return running.finish(found, columns, work.summarise, json, threads=threads, repeats=times, **more)

    _run(run)


@app.command(cls=Command)
def scale(
    clients: Annotated[
        Values, Option("--clients", metavar="K,...", help="default: 1000,10000,100000 (15 GB)")
    ] = None,
    network: Annotated[str, Option(metavar="NAME", help="lenet5, mlp (784-32-10) or resnet18")] = "lenet5",
    store: Annotated[str, Option(metavar="NAME", help="where clients are kept: memory or files")] = "memory",
    at_rest: Annotated[
        str, Option("--at-rest", metavar="NAME", help="weights at rest: fp32 or bf16")
    ] = "fp32",
    rounds: Annotated[int, Option("--rounds", min=1, help="rounds; the median of their times counts")] = 2,
    data: Annotated[
        Path | None, Option("--data", metavar="FILE", help="images, an .npz with x and y; default: digits")
    ] = None,
    folder: Annotated[
        Path | None, Option("--folder", metavar="DIR", help="where files and checkpoints lie meanwhile")
    ] = None,
    checkpoint: Annotated[bool, Option(help="write one, and time that")] = True,
    quick: Quick = False,
    json: Json = None,
) -> None:
    """Client-rounds per second, memory, checkpoints of many clients: `sparsefl bench scale --quick`."""
    from sparsefl.bench import scale as work

    def run() -> int:
        given = {
            "network": names("--network", [network], (), work.NETWORKS)[0],
            "store": names("--store", [store], (), work.STORES)[0],
            "at_rest": names("--at-rest", [at_rest], (), work.AT_REST)[0],
            "rounds": rounds,
            "data": str(data.absolute()) if data else None,
            "folder": str(folder.absolute()) if folder else None,
            "checkpoint": checkpoint,
        }
        counted = counts("--clients", clients, work.QUICK if quick else work.CLIENTS)
        return work.command([work.Case(clients=count, **given) for count in counted], json)

    _run(run)


@app.command(cls=Command)
def cluster(
    network: Annotated[Values, Option(metavar="NAME,...", help="resnet18, lenet5; default: resnet18")] = None,
    density: Annotated[float, Option(min=0.01, max=1, help="share of the weights stored")] = 0.5,
    nodes: Annotated[int, Option(min=1, help="of the cluster; threads of its rival")] = 2,
    clients: Annotated[int | None, Option(min=2, help="default: 8, of lenet5 200")] = None,
    repeats: Repeats = None,
    quick: Quick = False,
    json: Json = None,
) -> None:
    """A Ray cluster of this machine against threads, at equal cores: `sparsefl bench cluster --nodes 2`."""
    from sparsefl.bench import cluster as work

    def run() -> int:
        times = repeats or (1 if quick else 5)
        chosen = names("--network", network, ("lenet5",) if quick else ("resnet18",), work.NETWORKS)
        few = 8 if quick and clients is None else clients
        return work.command(work.run(chosen, density, nodes, few, times), nodes, times, json)

    _run(run)


@app.command(cls=Command)
def clients(
    network: Annotated[
        Values,
        Option(
            metavar="NAME,...",
            help="default: mlp,lenet5,small_cnn-digits,small_cnn-cifar10,resnet18",
        ),
    ] = None,
    density: Annotated[Values, options.density("0.5,0.2,0.1")] = None,
    repeats: Repeats = None,
    device: Annotated[
        str,
        Option(help="where ours trains: cpu, or a GPU (cuda, cuda:1) beside eager PyTorch on it"),
    ] = "cpu",
    cpu_time: Annotated[
        bool,
        Option("--cpu-time", help="ratios of the processor's time, not the clock's: on a shared machine"),
    ] = False,
    quick: Quick = False,
    json: Json = None,
) -> None:
    """Client-rounds of a run against plain PyTorch loops: `sparsefl bench clients --network mlp,lenet5`."""
    from sparsefl.bench import clients as work

    def run() -> int:
        default = work.QUICK if quick else (tuple(work.CASES), work.DENSITIES)
        chosen = names("--network", network, default[0], work.CASES)
        densities = shares("--density", density, default[1])
        times, clock = repeats or (2 if quick else None), "cpu_ms" if cpu_time else "median_ms"
        return work.command(chosen, densities, times, clock, json, device)

    _run(run)


@app.command(cls=Command)
def rounds(
    preset: Annotated[
        str, Option(metavar="CONFIG_OR_PRESET", help="what is run: a preset or a TOML file")
    ] = "cifar10-small",
    seeds: Annotated[int, Option(min=1, help="how many runs of each kind, with seeds from 0 on")] = 3,
    number: Annotated[int, Option("--rounds", min=1, help="rounds of a run")] = 7,
    changes: Annotated[
        list[str] | None, Option("--set", metavar="KEY=VALUE", help="change a key of it; may be repeated")
    ] = None,
    workers: Annotated[int | None, Option(min=1, help="clients at a time; default: one per core")] = None,
    plot: Plot = None,
    quick: Annotated[
        bool, Option("--quick", help="digits, few rounds, two seeds: a look, not a measurement")
    ] = False,
    json: Annotated[
        Path | None, Option(metavar="FILE", help="write the result here, after every seed")
    ] = None,
) -> None:
    """Whole runs on sparse kernels and on dense ones with masks, in turns (about 25 minutes)."""
    from fl.report import picture
    from sparsefl.bench import rounds as work

    def run() -> int:
        if plot:
            picture.check(plot)
        if quick:
            cfg, some = work.quick(changes or ()), min(seeds, 2)
        else:
            cfg, some = work.settings(preset, number, changes or ()), seeds
        return work.command(cfg, range(some), workers, json, plot)

    _run(run)


@app.command(cls=Command)
def cost(
    theta: Annotated[
        bool,
        Option(
            "--theta",
            help="the paper's total cost (1 - theta) time + theta energy instead: theta 0 weighs time alone, "
            "1 energy alone",
        ),
    ] = False,
    plot: Annotated[
        Path | None, Option(metavar="FILE", help="draw the cost against theta: .png or .html")
    ] = None,
    neighbours: Annotated[
        Values, Option(metavar="M,...", help="Theorem 1: neighbours per client (M); default: 2,5,10,20,50")
    ] = None,
    number: Annotated[int, Option("--rounds", help="Theorem 1: rounds (T)")] = 500,
    steps: Annotated[int, Option(help="Theorem 1: local steps per round (E)")] = 5,
    mu: Annotated[float, Option(help="Theorem 1: smoothness of the losses")] = 1.0,
    sigma: Annotated[
        tuple[float, float, float],
        Option(
            metavar="L G P", help="Theorem 1: deviations of gradients within clients, between them, by masks"
        ),
    ] = (1.0, 1.0, 1.0),
    gap: Annotated[
        float | None, Option(help="Theorem 1: loss of the first model above the least one; default: log 10")
    ] = None,
    eta: Annotated[float | None, Option(help="Theorem 1: step size; default: half of what is usable")] = None,
    quick: Annotated[bool, Option("--quick", help="the last data set only: CIFAR100")] = False,
    json: Json = None,
) -> None:
    """Bytes, FLOP, time and energy of every method, counted as in the paper; Theorem 1 in numbers."""
    from fl.report import picture
    from sparsefl.bench import cost_command as work
    from sparsefl.bench import theory
    from sparsefl.bench.cost import TASKS

    def run() -> int:
        if plot:
            picture.check(plot)
        tasks = tuple(TASKS)[-1:] if quick else tuple(TASKS)
        if theta:
            return work.total_cost(tasks, json, plot)
        given = number, steps, mu, *sigma, theory.GAP if gap is None else gap
        settings = [theory.Setting(m, *given) for m in counts("--neighbours", neighbours, theory.NEIGHBOURS)]
        return work.costs(tasks, settings, eta, json, plot)

    _run(run)


@app.command(cls=Command)
def wire(
    model: Models = None,
    density: Annotated[Values, options.density("0.5,0.35,0.2,0.1")] = None,
    repeats: Repeats = None,
    quick: Quick = False,
    json: Json = None,
) -> None:
    """Messages: bytes against the bound and against rivals, and GB/s of writing and reading them."""
    from sparsefl.bench import models, running
    from sparsefl.bench import wire as work

    def run() -> int:
        known = tuple(models.MODELS)
        chosen = names("--model", model, known[:1] if quick else known, known)
        densities = shares("--density", density, models.DENSITIES[:1] if quick else models.DENSITIES)
        times = repeats or (2 if quick else 7)
        rows = work.run(chosen, densities, repeats=times, stages=not quick)
        columns = {"model": "", "density": "", "stage": "", "name": "", "bytes": ",", "of_bound": ".4f"}
        columns |= dict.fromkeys(("vs_dense", "vs_csr", "encode_gbps", "decode_gbps"), ".2f")
        title = (
            "messages: bytes, over their bound, and times shorter than dense and CSR; GB/s of dense weights"
        )
        found = list(running.shown(rows, work.told))
        return running.finish(found, columns, work.summarise, json, repeats=times, title=title)

    _run(run)


@app.command(cls=Command)
def authors(
    path: Annotated[Path, Argument(metavar="PATH", help="a checkout of github.com/EricLoong/da-dpfl")],
    density: Annotated[Values, options.density("0.5,0.2")] = None,
    repeats: Repeats = None,
    json: Json = None,
) -> None:
    """A client-round of the authors' code against ours, which must compute the same."""
    from sparsefl.bench import authors as work

    def run() -> int:
        return work.command(path, shares("--density", density, tuple(work.GOALS)), repeats or 7, json)

    _run(run)


@app.command(cls=Command)
def join(
    into: Annotated[Path, Argument(metavar="INTO", help="the result file to write")],
    files: Annotated[list[Path], Argument(metavar="FILE", help="result files of one benchmark, other cases")],
) -> None:
    """Result files of one benchmark on other cases as one: same commit, machine and threads."""
    from sparsefl.bench import report

    def run() -> int:
        report.save(report.joined([report.load(file) for file in files]), into)
        return 0

    _run(run)


@app.command("report", cls=Command)
def report_page(
    out: Annotated[Path, Option(metavar="DIR", help="write report.html and the pictures here")] = Path(
        "build/report"
    ),
    results: Annotated[Path, Option(metavar="DIR", help="the result files")] = Path("bench/results"),
    pictures: Annotated[
        bool, Option("--pictures/--no-pictures", help="every figure as .png too; needs chromium")
    ] = True,
) -> None:
    """All results on one self-contained page: speed, break-even, roofline, bytes, accuracy, what lost."""
    from sparsefl.bench import overview

    _run(lambda: overview.command(results, out, pictures, typer.echo))


@app.command(cls=Command)
def table(
    file: Annotated[
        Path, Argument(metavar="FILE", help="a result file, or the comparison.json of `sparsefl compare`")
    ],
    rates: Annotated[bool, Option("--rates", help="of `bench layers`: GFLOP/s by shape")] = False,
    into: Annotated[
        Path | None, Option(metavar="DOCUMENT", help="put it there, between the marks for it")
    ] = None,
) -> None:
    """A result file as a Markdown table."""
    from sparsefl.bench import report

    def run() -> int:
        text = report.table(report.load(file), rates)
        if into:
            report.insert(text, into, "rates" if rates else file.stem)
        else:
            typer.echo(text)
        return 0

    _run(run)
