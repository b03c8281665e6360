"""`sparsefl energy bench`: a training step of the sparse program against the fastest dense float32 step.

Joules are those of all meters of the machine together (docs/energy.md); their sources stand in the result.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fl.run.meters.energy import How
from fl.units import quantity
from sparsefl.bench import dense, energy, models, running
from sparsefl.bench.energy import Block, Session
from sparsefl.bench.options import counts, names, shares
from sparsefl.bench.timing import take_turns
from sparsefl.kernels import use_threads

Row = dict[str, Any]
Step = Callable[[], object]
_DEFAULT = (("resnet18",), (32,), (0.2,))  # networks, batches, densities
OURS = "program"


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """What the command line said."""

    how: How
    models: Sequence[str] | None = None
    batches: Sequence[str] | None = None
    densities: Sequence[str] | None = None
    seconds: float = energy.SHORTEST_S
    blocks: int = 5
    threads: int = 1
    json: Path | None = None


def run(given: Arguments) -> int:
    """Measure, show the tables, return the exit code."""
    chosen = names("--model", given.models, _DEFAULT[0], models.MODELS)
    batches = counts("--batch", given.batches, _DEFAULT[1])
    densities = shares("--density", given.densities, _DEFAULT[2])
    with Session(given.how, given.seconds) as session:
        cases = _cases(chosen, batches, densities, given.threads)
        found = [*running.shown(_measured(cases, session, given), _told)]
        trusted = session.end()
    rows = [*_rows(found, session, trusted)]
    columns = {"model": "", "batch": "", "density": "", "name": "", "step_ms": ".2f"}
    columns |= dict.fromkeys(energy.SHOWN, "")
    columns |= {"joules_spread": ".3f", "joules_ours": ".2f", "energy_note": ""}
    session.tell()
    title = "joules of a training step, median of blocks; joules_ours: how many times our joules"
    how = {"threads": given.threads, "repeats": given.blocks, "title": title, "energy": session.facts}
    return running.finish(rows, columns, summarise, given.json, seconds=given.seconds, **how)


def _cases(
    chosen: Sequence[str], batches: Sequence[int], densities: Sequence[float], threads: int
) -> Iterator[tuple[Row, dict[str, Step]]]:
    """A case, and the steps of its two contestants."""
    torch.set_num_threads(threads)
    with use_threads(threads):
        for name in chosen:
            for batch in batches:
                torch.manual_seed(0)
                classes, shape = models.MODELS[name]
                images, labels = torch.randn(batch, *shape), torch.randint(0, classes, (batch,))
                fastest = _fastest(name, classes, images, labels)
                for density in densities:
                    ours = models.checked(name, images, labels, density)
                    step = models.program_step(ours, images, labels)[0]
                    yield {"model": name, "batch": batch, "density": density}, {OURS: step, **fastest}


def _fastest(name: str, classes: int, images: Tensor, labels: Tensor) -> dict[str, Step]:
    """The dense float32 step that takes the least time here."""
    rivals = dense.rivals(name, classes, images, labels, compiled=False)
    steps = {who: step for who, step in rivals.steps.items() if not who.endswith(dense.BF16)}
    timings = take_turns(steps, repeats=3, burst=1)
    best = min(timings, key=lambda who: timings[who].median)
    return {best: steps[best]}


def _measured(
    cases: Iterator[tuple[Row, dict[str, Step]]], session: Session, given: Arguments
) -> Iterator[Row]:
    for case, steps in cases:
        blocks = energy.take_turns(steps, session.meter, seconds=given.seconds, blocks=given.blocks)
        yield from (case | {"name": who, "found": some} for who, some in blocks.items())


def _rows(found: Sequence[Row], session: Session, trusted: bool) -> Iterator[Row]:
    """`found` with the figures of its blocks, which are whole only once idle power was measured again."""
    ours: float | None = None
    for row in found:
        blocks: list[Block] = row["found"]
        told = energy.figures(blocks, row["batch"], trusted=trusted)
        ours = told["joules_per_step"] if row["name"] == OURS else ours  # which comes first
        known = ours is not None and told["joules_per_step"] is not None
        ratio = told["joules_per_step"] / ours if known else None
        case = {key: value for key, value in row.items() if key != "found"}
        yield case | told | energy.shown(told, session.meter) | {"joules_ours": ratio}


def _told(row: Row) -> str:
    """A row in a line, for progress."""
    joules = [None if one.joules is None else one.joules / one.steps for one in row["found"]]
    each = ", ".join("unknown" if one is None else quantity(one, "J") for one in joules)
    case = f"{row['model']}, batch {row['batch']}, density {row['density']:g}"
    return f"{case}: {row['name']} {each} per step"


def summarise(rows: list[Row]) -> dict[str, dict[str, dict[str, float]]]:
    """By network and batch, then density: joules of the dense step over ours, gross and net."""
    summary: dict[str, dict[str, dict[str, float]]] = {}
    for ours, other in zip(rows[::2], rows[1::2], strict=True):
        cell = summary.setdefault(f"{ours['model']}, batch {ours['batch']}", {})
        ratios = {
            name: other[key] / ours[key]
            for name, key in (("gross", "joules_per_step"), ("net", "net_joules_per_step"))
            if ours[key] and other[key] is not None
        }
        cell[str(ours["density"])] = ratios
    return summary
