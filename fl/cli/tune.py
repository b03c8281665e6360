"""`sparsefl tune`: measures which kernels are the fastest on this machine, and writes its plan."""

from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import sparse_engine as se
from fl.cli.exits import guarded
from fl.errors import ConfigError
from fl.units import quantity
from sparse_engine.choice import files, layers, plan, tune
from sparse_engine.choice.plan import Plan
from sparse_engine.choice.tune import Found, Tuned
from sparse_engine.doctor.environment import environment
from sparse_engine.program.cpu.convs import lanes_for

SECONDS, QUICK = 180.0, 40.0
_SHAPES = {"alexnet": (3, 64, 64), "lenet5": (1, 28, 28), "mlp": (1, 8, 8)}  # of an image; others: 3x32x32
_SHOWN = 12  # layers of a network whose kernels are told, those that gain most


class Arguments(NamedTuple):
    network: str | None = None
    shape: str | None = None  # of an image, as 3x32x32
    batches: Sequence[int] = (32,)
    densities: Sequence[float] = (0.5, 0.2, 0.1)
    quick: bool = False
    out: Path | None = None


def run(console: Console, given: Arguments) -> int:
    return guarded(console, lambda: _tune(console, given))


def _tune(console: Console, given: Arguments) -> int:
    _check(given)
    path = given.out or files.machine_file()
    before = plan.from_file(path) if path.exists() else Plan(rule=plan.built_in())
    facts = environment()
    console.print(f"{facts['cpu']}, {facts['instruction set in use']}; plan until now: {before.identity()}")
    torch.set_num_threads(1)
    if given.network is None:
        after = _constants(console, before, QUICK if given.quick else SECONDS)
    else:
        after = _network(console, before, given.network, given)
    files.write(path, after.text())
    console.print(f"written: {path} ({after.identity()})", soft_wrap=True)
    if given.out is not None:
        console.print(
            f"use it with SPARSE_PLAN={path}; runs that were started keep their own", soft_wrap=True
        )
    return 0


def _check(given: Arguments) -> None:
    if given.network is None and given.shape is not None:
        raise ConfigError("expected --shape with --network: constants are of layers drawn at random")
    if min(given.batches) < 1:
        raise ConfigError(f"--batch: expected sizes from 1, got {min(given.batches)}")
    wrong = [density for density in given.densities if not 0 < density <= 1]
    if wrong:
        raise ConfigError(f"--density: expected shares above 0 and up to 1, got {wrong[0]:g}")


def _constants(console: Console, before: Plan, seconds: float) -> Plan:
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("random layers", total=1.0)
        found = tune.constants(
            seconds,
            lambda count, over: progress.update(task, completed=over, description=f"{count} random layers"),
        )
    _show_constants(console, found, before)
    return Plan(before.measured, rule=found.rule)


def _show_constants(console: Console, found: Found, before: Plan) -> None:
    table = Table(title="how often a kernel was the fastest")
    table.add_column("kernel")
    for direction in tune.DIRECTIONS:
        table.add_column(direction.replace("_", " "), justify="right")
    for kernel, counts in found.fastest().items():
        table.add_row(kernel, *map(str, counts.values()))
    console.print(table)
    table = Table(title=f"choices for {len(found.apart) // 3} layers that were kept aside")
    for column in ("rule", "fastest over chosen", "90 % at or above", "within 5 %"):
        table.add_column(column, justify="left" if column == "rule" else "right")
    for name, q in found.qualities(before.rule).items():
        table.add_row(name, f"{q.mean:.3f}", f"{q.worst_tenth:.2f}", f"{q.within:.0%}")
    console.print(table)


def _network(console: Console, before: Plan, name: str, given: Arguments) -> Plan:
    shape = _shape(given.shape) if given.shape else _SHAPES.get(name, (3, 32, 32))
    densities = given.densities[:1] if given.quick else given.densities
    cases: dict[layers.Case, None] = {}
    for density in densities:
        net = se.sparsify(_built(name, shape), density=density, seed=0)
        for batch in dict.fromkeys(size for n in given.batches for size in (n, lanes_for(n))):  # programs pad
            cases |= dict.fromkeys(layers.of_network(net, torch.randn(batch, *shape), before))
    after, done = Plan(dict(before.measured), rule=before.rule), list[Tuned]()
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task(f"layers of {name}", total=len(cases))
        for one in tune.network([*cases], after):
            done.append(one)
            progress.advance(task)
    _show_network(console, done)
    return after


def _show_network(console: Console, done: list[Tuned]) -> None:
    changed = sorted((one for one in done if one.rule != one.kernel), key=lambda one: -one.gain)
    table = Table(title=f"{len(changed)} of {len(done)} choices differ from the rule's")
    for column in ("layer", "direction", "density", "rule", "takes", "measured", "takes"):
        table.add_column(column)
    for one in changed[:_SHOWN]:
        conv, image = one.case.conv, one.case.image
        layer = f"{'x'.join(map(str, conv.shape))} on {'x'.join(map(str, image))}"
        was, now = (quantity(one.times[kernel], "s") for kernel in (one.rule, one.kernel))
        direction = one.case.direction.replace("_", " ")
        table.add_row(layer, direction, f"{conv.density:.2f}", one.rule, was, one.kernel, now)
    if changed:
        console.print(table)
    rule, taken = (sum(one.times[k] for one, k in pairs) for pairs in _pairs(done))
    console.print(f"all {len(done)}: {quantity(rule, 's')} by the rule, {quantity(taken, 's')} as measured")


def _pairs(done: list[Tuned]) -> tuple[list[tuple[Tuned, str]], list[tuple[Tuned, str]]]:
    return [(one, one.rule) for one in done], [(one, one.kernel) for one in done]


def _built(name: str, shape: tuple[int, ...]) -> torch.nn.Module:
    try:
        how = {"in_features": prod(shape)} if name == "mlp" else {"in_channels": shape[0]}
        return se.models.by_name(name, num_classes=10, **how)
    except ValueError as wrong:
        raise ConfigError(f"--network: {wrong}") from wrong


def _shape(text: str) -> tuple[int, ...]:
    parts = text.split("x")
    if len(parts) != 3 or not all(part.isdigit() and int(part) > 0 for part in parts):
        raise ConfigError(f"--shape: expected channels, height and width as 3x32x32, got {text!r}")
    return tuple(map(int, parts))
