"""`sparsefl bench WHAT`, `python -m bench WHAT`: run one benchmark, show it, save it."""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from rich.console import Console

from bench import cases, ops, report
from bench.meta import meta


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="sparsefl bench", description=__doc__)
    commands = parser.add_subparsers(dest="what", required=True)
    _ops_arguments(commands.add_parser("ops", help="the bandwidth-bound kernels against PyTorch and scipy"))
    _table_arguments(commands.add_parser("table", help="a result file as a Markdown table"))
    args = parser.parse_args(argv)
    return {"ops": _ops, "table": _table}[args.what](args)


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
    console = Console()
    if args.aot:
        return _aot(args.json, console)
    densities = tuple(args.density[:1] if args.quick else args.density)
    repeats = 2 if args.quick else args.repeats
    rows = []
    with console.status("measuring ..."):
        for row in ops.run(densities, threads=args.threads, repeats=repeats, only=args.op):
            rows.append(row)
    if not rows:
        console.print(f"no operation is called {args.op!r}")
        return 2
    columns = {"op": "", "density": "", "name": "", "median_ms": ".3f", "spread": ".2f", "times_ours": ".2f",
               "times_ours_cold": ".2f", "bandwidth_share": ".2f"}  # fmt: skip
    report.show_rows(rows, columns, "times_ours: how many times our median", console)
    result = {"meta": meta(args.threads, repeats=repeats), "rows": rows, "summary": ops.summarise(rows)}
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


def _table_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path)


def _table(args: argparse.Namespace) -> int:
    print(report.markdown(json.loads(args.file.read_text())))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
