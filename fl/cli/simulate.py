"""The options of `sparsefl simulate`. The work is in fl.simulate, imported when the command runs."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from fl.cli.exits import guarded


def simulate(
    clients: Annotated[int, Option(help="Number of clients (K in the paper), up to millions.")] = 100,
    degree: Annotated[
        str,
        Option(
            metavar="M,...", help="Neighbours per client (M) in random and regular graphs; several: 1,2,5,10."
        ),
    ] = "10",
    max_wait: Annotated[
        str,
        Option(
            metavar="N,...",
            help="How many neighbours a client waits for at most (N); several: 0,1,2,all.",
        ),
    ] = "all",
    topology: Annotated[str, Option(help="random, regular, ring, line, star, grid or full.")] = "random",
    edges: Annotated[Path | None, Option(help="File with links 'k j' (k takes from j) or a matrix.")] = None,
    redraw: Annotated[
        bool | None, Option("--redraw/--static", help="New graph each round; random does, others do not.")
    ] = None,
    reuse: Annotated[str, Option(help="Reuse index: random or id.")] = "random",
    wait_rule: Annotated[str, Option(help="Wait for the fastest, or by index.")] = "fastest",
    rounds: Annotated[
        int | None, Option(help="Rounds per setting; by default as many as take seconds, up to 200.")
    ] = None,
    device_model: Annotated[
        str | None, Option(help="homogeneous, uniform, lognormal or trace; homogeneous by default.")
    ] = None,
    spread: Annotated[float, Option(help="How much uniform or lognormal devices differ.")] = 0.5,
    hardware: Annotated[
        str | None, Option(help="A real device, modelled: phone, raspberry_pi, jetson or rtx4090.")
    ] = None,
    device_trace: Annotated[
        Path | None, Option(help="CSV file: client, speed, bandwidth (docs/devices.md).")
    ] = None,
    absent_rate: Annotated[
        float | None, Option(help="Share of clients that a round lacks, at random.")
    ] = None,
    online: Annotated[float | None, Option(help="Rounds that a client stays, mean.")] = None,
    offline: Annotated[float | None, Option(help="Rounds that a client stays away, mean.")] = None,
    presence_trace: Annotated[
        Path | None, Option(help="CSV file: client, hours_online (docs/devices.md).")
    ] = None,
    round_hours: Annotated[float, Option(help="Hours of that file from round to round.")] = 1.0,
    workload: Annotated[str, Option(help="FLOP and bytes of: resnet18, vgg11 or alexnet.")] = "resnet18",
    dense: Annotated[bool, Option("--dense", help="The workload without masks.")] = False,
    flop: Annotated[
        float | None, Option(help="FLOP of a client's training, in place of the workload's.")
    ] = None,
    message_bytes: Annotated[float | None, Option(help="Bytes of a message, the same.")] = None,
    messages: Annotated[
        str, Option(help="Counted after training, or during: starts wait for links.")
    ] = "after",
    seed: Annotated[int, Option(help="Seed of everything drawn.")] = 0,
    plot: Annotated[
        Path | None,
        Option(metavar="FILE", help="Write curves against neighbours (M) and waiting (N) to this HTML file."),
    ] = None,
    json: Annotated[Path | None, Option(metavar="FILE", help="Write all figures to this file.")] = None,
) -> None:
    """The schedule without training: parallelism, depth and waiting; time and energy as modelled."""
    from fl.simulate import simulate as work
    from fl.simulate import world

    console = work.console()

    def run() -> int:
        chosen = work.workload(workload)
        settings = work.Settings(
            clients=clients,
            degrees=work.numbers("degree", degree),
            max_waits=work.numbers_or_all("max-wait", max_wait),
            topology="edges" if edges else topology,
            edges=str(edges) if edges else None,
            redraw=redraw,
            reuse=reuse,
            wait_rule=wait_rule,
            rounds=rounds,
            model=world.devices(device_model, spread, hardware, _text(device_trace)),
            presence=world.presences(absent_rate, online, offline, _text(presence_trace), round_hours),
            flop=chosen.flop(dense) if flop is None else flop,
            message_bytes=chosen.message_bytes(dense) if message_bytes is None else message_bytes,
            messages=messages,
            seed=seed,
        )
        work.run(settings, console, plot, json)
        return 0

    raise typer.Exit(guarded(console, run))


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)
