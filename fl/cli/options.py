"""Options that several commands have."""

from pathlib import Path
from typing import Annotated

import typer

Source = Annotated[
    str | None,
    typer.Argument(metavar="CONFIG_OR_PRESET", help="a preset (`sparsefl list`) or a TOML file"),
]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="change a key of it; may be repeated"),
]
Out = Annotated[Path | None, typer.Option(metavar="DIR", help="where the run goes; default runs/NAME-TIME")]
Resume = Annotated[Path | None, typer.Option(metavar="DIR", help="go on with a run that was stopped")]
Executor = Annotated[
    str, typer.Option(help="where clients train: local, or ray (a cluster: docs/cluster.md)")
]
Address = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help="of a Ray cluster, or auto; default: one of this machine alone"),
]
Workers = Annotated[
    int | None, typer.Option(help="clients at a time (ray: per machine); default: one per core")
]
Device = Annotated[
    str,
    typer.Option(
        help="where clients train: cpu, cuda (the first GPU), cuda:1, all (every GPU); all,cpu: on both"
    ),
]
Baseline = Annotated[
    str | None,
    typer.Option(help="run once more and compare: dense (on dense kernels) or fp32 (with exact messages)"),
]
Log = Annotated[
    str | None,
    typer.Option(help="figures of rounds as well to: csv, tensorboard, wandb, mlflow (with commas)"),
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="remove an earlier run in --out DIR, and nothing else there")
]
AllowMixed = Annotated[
    bool,
    typer.Option(
        "--allow-mixed", help="go on where numbers come out otherwise than before: another machine, version"
    ),
]
Code = Annotated[
    list[str] | None,
    typer.Option(metavar="FILE", help="code of your own that DIR names and may be imported; may be repeated"),
]
Trust = Annotated[
    bool, typer.Option("--trust", help="import whatever code DIR names: only where you know who made it")
]
Energy = Annotated[
    bool, typer.Option("--energy", help="measure joules of every round, with the meters of this machine")
]
