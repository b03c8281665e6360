"""The command `sparsefl`. What a command needs is imported when it runs: `--help` waits for no torch."""

from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fl.cli import energy as energy_commands
from fl.cli import options
from fl.cli.commands import application
from fl.cli.exits import guarded
from fl.cli.simulate import simulate

app = application("Sparse kernels and an engine for decentralized personalized federated learning.")
_PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"sparsefl {version('sparsefl')}")
        raise typer.Exit()


@app.callback()
def _everywhere(
    shown: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="show the version")
    ] = False,
) -> None:
    """Options of `sparsefl` itself."""


@app.command()
def run(
    source: options.Source = None,
    changes: options.Changes = None,
    out: options.Out = None,
    resume: options.Resume = None,
    executor: options.Executor = "local",
    address: options.Address = None,
    workers: options.Workers = None,
    device: options.Device = "cpu",
    baseline: options.Baseline = None,
    log: options.Log = None,
    overwrite: options.Overwrite = False,
    allow_mixed: options.AllowMixed = False,
    energy: options.Energy = False,
    code: options.Code = None,
    trust: options.Trust = False,
) -> None:
    """Train: `sparsefl run demo`. Ctrl-C stops it, `--resume DIR` goes on."""
    from fl.cli.run import Arguments, How, run

    asked = (source, changes or (), out, resume, executor, workers, baseline, log, overwrite, allow_mixed)
    given = Arguments(*asked, code or (), trust, How() if energy else None, device, address)
    raise typer.Exit(run(Console(), given))


@app.command()
def compare(
    source: options.Source = None,
    algorithms: Annotated[
        str | None,
        typer.Option(metavar="A,B,...", help="which: a,b,c or all; NAME=A: A once more, under another name"),
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(
            metavar="N", help="seeds of each, from the seed on; 1,A=3: 3 of A. Default 1, or all of --resume"
        ),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="change a key of all; NAME:KEY=VALUE: of one"),
    ] = None,
    grid: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=A,B,...", help="each of these values; repeated: every combination"),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="where all goes; default runs/compare-NAME-TIME")
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="go on; more --algorithms, --grid or --seeds are added to it"),
    ] = None,
    executor: options.Executor = "local",
    address: options.Address = None,
    workers: options.Workers = None,
    device: options.Device = "cpu",
    target: Annotated[
        float | None,
        typer.Option(help="accuracy (0 to 1) whose cost is told; default: 95 % of the worst final one"),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="accuracy against rounds and bytes: .svg, .png or .html"),
    ] = None,
    table: Annotated[
        str | None,
        typer.Option(
            metavar="FORMAT", help="csv, latex or markdown: the table, and nothing else, on standard output"
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="remove an earlier one in --out DIR, and nothing else there")
    ] = False,
    allow_mixed: Annotated[
        bool,
        typer.Option(
            "--allow-mixed", help="go on where numbers come out otherwise: another machine, version"
        ),
    ] = False,
    energy: options.Energy = False,
    code: options.Code = None,
    trust: options.Trust = False,
) -> None:
    """Algorithms side by side, same data and seeds: `sparsefl compare demo --algorithms all --seeds 3`."""
    from fl.cli.compare import Arguments, run

    place = (out, resume, workers, target, plot, table, grid or (), overwrite, allow_mixed)
    more = (code or (), trust, energy, device, executor, address)
    given = Arguments(source, algorithms, seeds, changes or (), *place, *more)
    raise typer.Exit(run(Console(stderr=table is not None), given))


@app.command()
def report(
    path: Annotated[
        Path, typer.Argument(metavar="DIR", help="the directory of a run or a comparison, finished or not")
    ],
    code: options.Code = None,
    trust: options.Trust = False,
) -> None:
    """Make DIR/report.html anew: figures, table and settings of a run or a comparison on one page."""
    from fl.cli.run import show_report

    raise typer.Exit(show_report(Console(), path, code or (), trust))


@app.command()
def export(
    path: Annotated[Path, typer.Argument(metavar="DIR", help="the directory of a run, finished or not")],
    client: Annotated[
        str, typer.Option(metavar="K", help="whose model: a client's number, all, or server")
    ] = "all",
    format: Annotated[
        str, typer.Option(metavar="FORMAT", help="state_dict, safetensors or onnx-dense")
    ] = "state_dict",
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="default client-K.pt or the like; with all, -client-K is added"),
    ] = None,
    sparse: Annotated[
        bool, typer.Option("--sparse", help="safetensors: bitmap and values as stored, not dense")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="replace files that are there")] = False,
    code: options.Code = None,
    trust: options.Trust = False,
) -> None:
    """Trained models as files for others: `sparsefl export runs/demo --client 3 --out three.pt`."""
    from fl.cli.export import Arguments, run

    given = Arguments(
        path=path,
        client=client,
        format=format,
        out=out,
        sparse=sparse,
        overwrite=overwrite,
        code=code or (),
        trust=trust,
    )
    raise typer.Exit(run(Console(), given))


@app.command("list")
def list_all(
    part: Annotated[
        str | None, typer.Argument(metavar="PART", help="only what has this in its name, such as data.")
    ] = None,
    keys: Annotated[bool, typer.Option("--keys", help="every key of a configuration")] = False,
) -> None:
    """The presets and algorithms there are; in a pipe a line each: `sparsefl list --keys | grep rate`."""
    from fl.cli.listing import show_list

    raise typer.Exit(show_list(Console(), keys, part))


@app.command(context_settings=_PASS_ON, add_help_option=False)
def demo(context: typer.Context) -> None:
    """The same as `sparsefl run demo`, with the options of `run`: digits, 12 clients, in a minute or two."""
    app(["run", "demo", *context.args], prog_name="sparsefl")


@app.command()
def tour() -> None:
    """Compressed weights step by step, in seconds: mask, prune, regrow, average. Checks its own results."""
    from sparse_engine.doctor.tour import run

    console = Console()
    raise typer.Exit(guarded(console, lambda: run(console)))


@app.command()
def doctor() -> None:
    """Say what this installation and machine are, and check every native kernel against the reference."""
    from fl.cli.doctor import run

    raise typer.Exit(run(Console()))


app.command()(simulate)
app.add_typer(energy_commands.app, name="energy")


@app.command(context_settings=_PASS_ON, add_help_option=False)
def bench(context: typer.Context) -> None:
    """Measure against rivals: `sparsefl bench ops --quick`; `sparsefl bench --help` lists what."""
    from sparsefl.bench.__main__ import main  # the one place where fl reaches bench

    raise typer.Exit(main(context.args))
