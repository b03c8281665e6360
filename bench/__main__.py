"""`sparsefl bench WHAT`, `python -m bench WHAT`: run one benchmark, show it, save it."""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

from bench import cases, cost, layers, models, ops, report, rounds, rounds_plot, theory, wire
from bench.meta import meta
from fl import compare_table, config, picture


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="sparsefl bench", description=__doc__)
    commands = parser.add_subparsers(dest="what", required=True)
    _ops_arguments(commands.add_parser("ops", help="the bandwidth-bound kernels against PyTorch and scipy"))
    _layers_arguments(
        commands.add_parser("layers", help="convolutions and linear layers against dense PyTorch")
    )
    _models_arguments(commands.add_parser("models", help="whole training steps against dense PyTorch"))
    _join_arguments(commands.add_parser("join", help="result files of one benchmark, other cases, as one"))
    rounds.arguments(commands.add_parser("rounds", help="whole runs on sparse kernels and on dense ones"))
    _cost_arguments(commands.add_parser("cost", help="bytes and FLOP of every method, as the paper has them"))
    _wire_arguments(commands.add_parser("wire", help="messages: bytes against the bound, and GB/s"))
    _table_arguments(commands.add_parser("table", help="a result file as a Markdown table"))
    args = parser.parse_args(argv)
    hooks = {
        "ops": _ops,
        "layers": _layers,
        "models": _models,
        "rounds": _rounds,
        "cost": _cost,
        "wire": _wire,
        "join": _join,
        "table": _table,
    }
    return hooks[args.what](args)


def _common_arguments(parser: argparse.ArgumentParser, repeats: int) -> None:
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result here")
    parser.add_argument(
        "--quick", action="store_true", help="few repeats and cases: a look, not a measurement"
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=repeats)


def _ops_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result here")
    parser.add_argument(
        "--quick", action="store_true", help="fewer repeats, one density: a look, not a measurement"
    )
    parser.add_argument("--op", metavar="NAME", help="one operation only, such as masked_average")
    parser.add_argument("--density", type=float, nargs="+", default=list(cases.DENSITIES))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument(
        "--aot", action="store_true", help="registers, spills and shared memory of the Triton kernels"
    )


def _ops(args: argparse.Namespace) -> int:
    if args.aot:
        return _aot(args.json, report.console())
    densities = tuple(args.density[:1] if args.quick else args.density)
    repeats = 2 if args.quick else args.repeats
    rows = list(_shown(ops.run(densities, threads=args.threads, repeats=repeats, only=args.op)))
    if not rows:
        print(f"no operation is called {args.op!r}", file=sys.stderr)
        return 2
    columns = {"op": "", "density": "", "name": "", "median_ms": ".3f", "spread": ".2f", "times_ours": ".2f",
               "times_ours_cold": ".2f", "bandwidth_share": ".2f"}  # fmt: skip
    return _finish(args, rows, columns, ops.summarise, repeats)


def _layers_arguments(parser: argparse.ArgumentParser) -> None:
    _common_arguments(parser, repeats=5)
    parser.add_argument("--family", choices=sorted({shape.family for shape in layers.SHAPES}))
    parser.add_argument("--batch", type=int, nargs="+", default=list(layers.BATCHES))
    parser.add_argument("--sparsity", type=float, nargs="+", default=list(layers.SPARSITIES))
    parser.add_argument("--kernels", action="store_true", help="every kernel too, to see what auto chose")


def _layers(args: argparse.Namespace) -> int:
    batches, repeats = (args.batch[:1], 2) if args.quick else (args.batch, args.repeats)
    sparsities = tuple(args.sparsity)
    how = {"threads": args.threads, "repeats": repeats, "family": args.family, "kernels": args.kernels}
    rows = layers.run(tuple(batches), sparsities, **how)
    columns = {"shape": "", "batch": "", "sparsity": "", "name": "", "kernel": "", "median_ms": ".2f",
               "gflops": ".0f", "times_ours": ".2f"}  # fmt: skip
    peak = layers.matmul_gflops(args.threads)
    return _finish(args, list(_shown(rows)), columns, layers.summarise, repeats, matmul_gflops=peak)


def _models_arguments(parser: argparse.ArgumentParser) -> None:
    _common_arguments(parser, repeats=3)
    parser.add_argument("--model", nargs="+", choices=list(models.MODELS), default=list(models.MODELS))
    parser.add_argument("--batch", type=int, nargs="+", default=list(models.BATCHES))
    parser.add_argument("--density", type=float, nargs="+", default=list(models.DENSITIES))


def _models(args: argparse.Namespace) -> int:
    batches, repeats = (args.batch[:1], 1) if args.quick else (args.batch, args.repeats)
    cases_ = tuple(args.model), tuple(batches), tuple(args.density)
    rows = models.run(*cases_, threads=args.threads, repeats=repeats, memory=not args.quick)
    columns = {"model": "", "batch": "", "density": "", "name": "", "median_ms": ".1f", "times_ours": ".2f"}
    return _finish(args, list(_shown(rows)), columns, models.summarise, repeats)


def _rounds(args: argparse.Namespace) -> int:
    if args.plot:
        picture.check(args.plot)
    cfg, seeds = rounds.settings(args)
    result: report.Result = {}
    for result in rounds.results(cfg, seeds, args.workers, shown=_shown):
        result["meta"] = meta(1, workers=args.workers, config=config.dumps(cfg))
        if args.json:
            report.save(result, args.json)
    report.console().print(report.markdown(result), markup=False, soft_wrap=True)
    if args.plot:
        picture.draw(args.plot, rounds_plot.page(result))
    return 0


def _cost_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result here")
    parser.add_argument("--quick", action="store_true", help="the last data set only")
    usual = theory.Setting()
    group = parser.add_argument_group("theory", "Theorem 1's constants")
    group.add_argument("--neighbours", type=int, nargs="+", default=[2, 5, 10, 20, 50], help="M")
    group.add_argument("--rounds", type=int, default=usual.T, help="T")
    group.add_argument("--steps", type=int, default=usual.E, help="E, local steps")
    group.add_argument("--mu", type=float, default=usual.mu, help="smoothness of the losses")
    group.add_argument(
        "--sigma", type=float, nargs=3, default=[1.0, 1.0, 1.0], metavar=("L", "G", "P"),
        help="deviations of gradients: within a client, between clients, by masks",
    )  # fmt: skip
    group.add_argument("--gap", type=float, default=usual.gap, help="f0 - f*; default: log 10")
    group.add_argument("--eta", type=float, help="step size; default: half of what is usable")


def _cost(args: argparse.Namespace) -> int:
    args.threads = 1
    given = args.rounds, args.steps, args.mu, *args.sigma, args.gap
    try:
        settings = [theory.Setting(m, *given) for m in args.neighbours]
    except ValueError as wrong:
        print(wrong, file=sys.stderr)
        return 2
    rows = list(_shown(cost.run(tuple(cost.TASKS)[-1:] if args.quick else tuple(cost.TASKS))))
    constants = [theory.row(setting, args.eta) for setting in settings]
    columns = {"method": "", "data": "", "sparsity": "", "mb": ".1f", "mb_printed": ".1f", "mb_off": "+.2%",
               "mb_real": ".1f", "tflop": ".2f", "tflop_printed": ".1f", "tflop_off": "+.1%"}  # fmt: skip
    tables = {"table": cost.as_table(rows), "more": [cost.theory_table(settings, constants)]}
    title = "MB received by the busiest in a round, TFLOP of a client's training; _printed: in the paper"
    return _finish(args, rows, columns, cost.summarise, 1, title, tables | {"theory": constants})


def _wire_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result here")
    parser.add_argument("--quick", action="store_true", help="one model and density, no RigL steps: a look")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--model", nargs="+", choices=list(models.MODELS), default=list(models.MODELS))
    parser.add_argument("--density", type=float, nargs="+", default=list(models.DENSITIES))


def _wire(args: argparse.Namespace) -> int:
    args.threads = 1
    names, densities = tuple(args.model), tuple(args.density)
    repeats = 2 if args.quick else args.repeats
    if args.quick:
        names, densities = names[:1], densities[:1]
    rows = wire.run(names, densities, repeats=repeats, stages=not args.quick)
    columns = {"model": "", "density": "", "stage": "", "name": "", "bytes": ",", "of_bound": ".4f",
               "vs_dense": ".2f", "vs_csr": ".2f", "encode_gbps": ".2f", "decode_gbps": ".2f"}  # fmt: skip
    title = "messages: bytes, over their bound, and times shorter than dense and CSR; GB/s of dense weights"
    return _finish(args, list(_shown(rows)), columns, wire.summarise, repeats, title=title)


def _shown(rows: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Rows as they come, with a line of progress on the error stream."""
    for row in rows:
        what = " ".join(str(value) for value in list(row.values())[:5])
        print(f"\r{what:<76}", end="", file=sys.stderr, flush=True)
        yield row
    print(file=sys.stderr)


def _finish(
    args: argparse.Namespace,
    rows: list[dict[str, Any]],
    columns: dict[str, str],
    summarise: Callable[[list[dict[str, Any]]], dict],
    repeats: int,
    title: str = "times_ours: how many times our time",
    also: dict[str, Any] | None = None,
    **more: Any,
) -> int:
    console = report.console()
    report.show_rows(rows, columns, title, console)
    result = {"meta": meta(args.threads, repeats=repeats, **more), "rows": rows, "summary": summarise(rows)}
    result |= also or {}
    console.print(report.markdown(result), markup=False, soft_wrap=True)
    if args.json:
        report.save(result, args.json)
    return 0


def _aot(path: Path | None, console: Console) -> int:
    """In a process of its own: the compiler and Triton's interpreter exclude one another."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "kernels.aot", "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        console.print(done.stderr, markup=False)
        return done.returncode
    rows = json.loads(done.stdout)
    columns = {key: "" for key in rows[0]}
    report.show_rows(rows, columns, "Triton kernels compiled ahead of time for sm_89", console)
    if path:
        report.save({"meta": meta(1), "rows": rows, "summary": {}}, path)
    return 1 if any(row["spills"] for row in rows) else 0


def _join_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("into", type=Path)
    parser.add_argument("files", type=Path, nargs="+")


def _join(args: argparse.Namespace) -> int:
    report.save(report.joined([json.loads(file.read_text()) for file in args.files]), args.into)
    return 0


def _table_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, help="of a benchmark; or the comparison.json of `compare`")
    parser.add_argument("--rates", action="store_true", help="of `bench layers`: GFLOP/s by shape")
    parser.add_argument(
        "--into", type=Path, metavar="DOCUMENT", help="put it there, between the marks for it"
    )


def _table(args: argparse.Namespace) -> int:
    result = json.loads(args.file.read_text())
    if "algorithms" in result:
        text = compare_table.short(result)
    else:
        text = report.rates(result) if args.rates else report.markdown(result)
    if args.into:
        report.insert(text, args.into, "rates" if args.rates else args.file.stem)
    else:
        print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
