"""`sparsefl bench cost`: megabytes that the busiest client receives in a round: the paper's count, and real.

    printed   in the paper;   implied   the sparsity s that this volume says, 1 - printed / dense
    paper     10 models * 4 byte * entries * (1 - s) / 2^20, s as printed, with two digits
    real      10 messages (se.wire) of a fresh network at ERK density 1 - implied, / 2^20: values as they
              are, packed (exact too), and in 16 bits

The paper counts no mask, and what is never pruned shrinks with the rest.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

import sparse_engine as se

Row = dict[str, Any]
MODELS_A_ROUND, MB = 10, 2**20


class Printed(NamedTuple):
    """A row of the paper. Its AlexNet has 10 classes here."""

    model: str
    classes: int
    data: str
    sparsity: float
    volume: float


PAPER = (
    Printed("alexnet", 10, "HAM10000, dense", 0.0, 887.8),
    Printed("alexnet", 10, "HAM10000, Dir", 0.61, 346.2),
    Printed("alexnet", 10, "HAM10000, Pat", 0.56, 394.4),
    Printed("resnet18", 10, "CIFAR10, dense", 0.0, 426.3),
    Printed("resnet18", 10, "CIFAR10, Dir", 0.65, 149.1),
    Printed("resnet18", 10, "CIFAR10, Pat", 0.73, 115.1),
    Printed("vgg11", 100, "CIFAR100, dense", 0.0, 353.3),
    Printed("vgg11", 100, "CIFAR100, Dir", 0.70, 107.7),
    Printed("vgg11", 100, "CIFAR100, Pat", 0.73, 94.8),
)
FORMS: dict[str, dict[str, Any]] = {
    "real": {"pack": False},
    "real_packed": {},
    "real_bf16": {"values": "bf16"},
}


def run(rows: tuple[Printed, ...] = PAPER) -> Iterator[Row]:
    for printed in rows:
        torch.manual_seed(0)
        dense = se.compress(se.models.by_name(printed.model, num_classes=printed.classes))
        row = counted(printed, dense.bitmap.segments.numel + dense.rest.numel())
        state = _at(dense, 1 - row["implied"])
        real = {key: MODELS_A_ROUND * len(se.wire.encode(state, **how)) / MB for key, how in FORMS.items()}
        yield row | real


def counted(printed: Printed, entries: int) -> Row:
    """By the paper's count."""
    whole = MODELS_A_ROUND * 4 * entries / MB
    return {
        "model": printed.model,
        "data": printed.data,
        "sparsity": printed.sparsity,
        "implied": 1 - printed.volume / whole if printed.sparsity else 0.0,
        "printed": printed.volume,
        "paper": whole * (1 - printed.sparsity),
    }


def _at(dense: se.State, density: float) -> se.State:
    if density == 1:
        return dense
    layout = dense.layout
    shapes = dict(zip(layout.names, layout.shapes, strict=True))
    return dense.with_pattern(layout.bitmap_of(se.erk_masks(shapes, density, seed=0)))


def summarise(rows: list[Row]) -> dict[str, dict[str, dict[str, float]]]:
    """A row a model; the columns are its sparsities."""
    summary: dict[str, dict[str, dict[str, float]]] = {}
    for row in rows:
        cell = {key: row[key] for key in ("printed", "paper", *FORMS)}
        summary.setdefault(row["model"], {})[str(row["sparsity"])] = cell
    return summary
