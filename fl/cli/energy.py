"""`sparsefl energy`: runs and benchmarks with meters on, and what meters there are."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from fl.cli import options
from fl.cli.commands import Command, application
from fl.cli.exits import guarded, say
from fl.errors import ConfigError

if TYPE_CHECKING:
    from fl.run.meters.energy import How

app = application("Measure joules, with NVML (NVIDIA boards) and RAPL (processors): docs/energy.md.")
_IDLE_S = 5.0
_BENCH_IDLE_S = 30.0
_Gpus = Annotated[
    list[str] | None,
    typer.Option("--gpu", metavar="UUID", help="boards (`nvidia-smi -L`); default: those that torch sees"),
]


def _idle(default: float) -> typer.models.OptionInfo:
    text = f"idle power is measured so long, before and after; default: {default:g}. 0: net joules unknown"
    return typer.Option("--idle", metavar="SECONDS", help=text, show_default=False)


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
    code: options.Code = None,
    trust: options.Trust = False,
    gpu: _Gpus = None,
    idle: Annotated[float, _idle(_IDLE_S)] = _IDLE_S,
) -> None:
    """A run with meters on, as `sparsefl run --energy`: `sparsefl energy run demo`."""
    from fl.cli.run import Arguments, run

    def work() -> int:
        given = Arguments(
            source=source,
            changes=changes or (),
            out=out,
            resume=resume,
            executor=executor,
            address=address,
            workers=workers,
            baseline=baseline,
            log=log,
            overwrite=overwrite,
            allow_mixed=allow_mixed,
            code=code or (),
            trust=trust,
            energy=_how(gpu, idle),
            device=device,
        )
        return run(Console(), given)

    raise typer.Exit(guarded(Console(), work))


@app.command(cls=Command)
def bench(
    model: Annotated[
        list[str] | None, typer.Option(metavar="NAME,...", help="networks; default: resnet18")
    ] = None,
    batch: Annotated[
        list[str] | None, typer.Option(metavar="B,...", help="images per step; default: 32")
    ] = None,
    density: Annotated[
        list[str] | None, typer.Option(metavar="D,...", help="shares of the weights stored; default: 0.2")
    ] = None,
    seconds: Annotated[float, typer.Option(help="of every window, at least 10")] = 10.0,
    blocks: Annotated[int, typer.Option(min=1, help="windows of each that count; one more warms up")] = 5,
    threads: Annotated[int, typer.Option(min=1, help="threads, of us and of dense PyTorch")] = 1,
    gpu: _Gpus = None,
    idle: Annotated[float, _idle(_BENCH_IDLE_S)] = _BENCH_IDLE_S,
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="write the result here")] = None,
) -> None:
    """Joules per training step, dense against sparse, in turns: `sparsefl energy bench --density 0.5,0.2`."""
    from sparsefl.bench import energy_command  # `sparsefl bench` is where the rest of it is

    def work() -> int:
        given = energy_command.Arguments(
            models=model,
            batches=batch,
            densities=density,
            seconds=seconds,
            blocks=blocks,
            threads=threads,
            how=_how(gpu, idle),
            json=json,
        )
        return energy_command.run(given)

    raise typer.Exit(guarded(Console(), work))


@app.command()
def meters(gpu: _Gpus = None) -> None:
    """What can be measured here, from which source, or why not."""
    from fl.run.meters.energy import opened

    def work() -> int:
        console, energy = Console(), opened(_how(gpu, 0.0))
        for fact, what in energy.facts.items():
            say(console, f"{fact}: {what}")
        energy.close()
        return 0 if energy.meters else 1

    raise typer.Exit(guarded(Console(), work))


def _how(gpus: list[str] | None, idle: float) -> "How":
    from fl.run.meters.energy import How

    if not 0 <= idle < float("inf"):
        raise ConfigError(f"--idle: expected seconds from 0 on, got {idle:g}")
    for uuid in gpus or ():
        if not uuid.startswith("GPU-"):
            raise ConfigError(f"--gpu: expected a UUID, GPU-..., as `nvidia-smi -L` has it, got {uuid!r}")
    return How(tuple(gpus or ()), idle)
