"""What of a network cannot be sparse, in words: told before a run, whose density leaves these weights out."""

from collections.abc import Sequence

from torch import nn

import sparse_engine as se
from fl.config import ConfigError

_SHOWN = 3  # the largest


def remarks(net: nn.Module, name: str, shape: Sequence[int]) -> list[str]:
    """A sentence if weights of the network must stay dense; it takes samples of `shape`."""
    report = se.report(net, shape)
    staying = _staying(report)
    if not staying:
        return []
    share = sum(row.weights for row in staying) / report.weights
    uncounted = [row.name for row in staying if row.flops is None]
    without = f"; FLOP are counted without {', '.join(uncounted)}" if uncounted else ""
    return [
        f"{name}: {share:.1%} of the weights cannot be sparse and stay dense: {_listed(staying)}{without}"
    ]


def check(net: nn.Module, able: Sequence[str], name: str, key: str) -> None:
    """ConfigError, which begins with `key`: no weight can be sparse. `able`: names of those that can."""
    if able:
        return
    report = se.report(net)
    why = "all layers in model.exempt" if any(row.kind == "dense" for row in report) else _listed(report)
    raise ConfigError(
        f"{key}: expected a network with a Conv2d or Linear layer that can be sparse, got {name} with "
        f"{why or 'no weights'}"
    )


def _staying(report: se.Report) -> list[se.Row]:
    return [row for row in report if row.kind == "torch" and row.weights]


def _listed(rows: Sequence[se.Row]) -> str:
    largest = sorted(rows, key=lambda row: -row.weights)
    shown = "; ".join(f"{row.name or row.module} ({row.weights:,}): {row.why}" for row in largest[:_SHOWN])
    return shown + (f"; and {len(rows) - _SHOWN} more" if len(rows) > _SHOWN else "")
