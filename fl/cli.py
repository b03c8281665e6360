"""The command `sparsefl`. What a command needs is imported when it runs: `--help` waits for no torch."""

import typer
from rich.console import Console

app = typer.Typer(
    help="Sparse kernels and an engine for decentralized personalized federated learning.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
_PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}


@app.callback()
def _commands() -> None:
    """Keeps `sparsefl` a group of commands, however few there are."""


@app.command()
def demo() -> None:
    """Show what exists so far, in a few seconds; checks its own results."""
    from sparse_engine.demo import run

    raise typer.Exit(run(Console()))


@app.command()
def doctor() -> None:
    """Say what this installation and machine are, and check every native kernel against the reference."""
    from fl.doctor import run

    raise typer.Exit(run(Console()))


@app.command(context_settings=_PASS_ON, add_help_option=False)
def bench(context: typer.Context) -> None:
    """Measure against rivals: `sparsefl bench ops [--json FILE] [--quick] [--aot]`."""
    from bench.__main__ import main  # the one place where fl reaches bench

    raise typer.Exit(main(context.args))
