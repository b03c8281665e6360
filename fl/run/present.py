"""A round in which some clients are absent: what its line is about.

A line of metrics.jsonl is over the clients that are there: accuracies, densities, votes, bytes per client and
parallelism. Where nobody is, there are no accuracies, densities are those of all, and nothing was sent.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

import sparse_engine as se
from fl.algorithms.base import Round, Traffic
from fl.clients.base import Population
from fl.errors import ConfigError
from fl.world.presence import Attendance
from fl.world.topology import Neighbours

Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Some:
    """clients.base.Population of a part of another one, by place."""

    clients: Population[se.Model]
    which: Sequence[int]

    def __len__(self) -> int:
        return len(self.which)

    def __getitem__(self, k: int, /) -> se.Model:
        return self.clients[self.which[k]]

    def __iter__(self) -> Iterator[se.Model]:
        return (self.clients[k] for k in self.which)


def checked(result: Round, attendance: Attendance) -> Round:
    """`result` itself. ConfigError: somebody trained who is not there, so the algorithm knows no presence."""
    wrong = [k for k in result.reports if not attendance.has(k)]
    if wrong:
        raise ConfigError(
            "presence.kind: expected always with an algorithm that does not ask env.attendance who is there, "
            f"got absent clients that trained: {wrong[:5]}"
        )
    return result


def facts(attendance: Attendance) -> dict[str, Any]:
    """What a line has beside; nothing where everybody is there in every round."""
    return {} if attendance.there is None else {"present": int(attendance.there.sum())}


def only(result: Round, attendance: Attendance) -> Round:
    """The round of those that are there, numbered anew: for its line alone."""
    there = attendance.there
    if there is None or there.all():
        return result
    which = np.flatnonzero(there)
    if not which.size:
        return replace(result, accuracy=[], accuracy_before=[], columns=_columns(result, which))
    place = {int(k): i for i, k in enumerate(which)}
    plan = result.schedule
    return replace(
        result,
        models=Some(result.models, which.tolist()),
        schedule=replace(plan, wait=_rows(plan.wait, which), wave=plan.wave[which]),
        traffic=Traffic(*(_with_server(part, which, len(there)) for part in result.traffic)),
        reports={place[k]: report for k, report in result.reports.items()},
        accuracy=_of(result.accuracy, which),
        accuracy_before=_of(result.accuracy_before, which),
        columns=_columns(result, which),
    )


def _columns(result: Round, which: Numbers) -> dict[str, Sequence[Any]]:
    return {name: [column[k] for k in which.tolist()] for name, column in result.columns.items()}


def _of(values: Sequence[Any] | None, which: Numbers) -> Sequence[Any] | None:
    return None if values is None else [values[k] for k in which.tolist()]


def _rows(links: Neighbours, which: Numbers) -> Neighbours:
    """These rows; what is in them keeps its number."""
    counts = links.degrees[which]
    kept = np.isin(links.takers(), which)
    return Neighbours(np.concatenate([[0], np.cumsum(counts)]), links.indices[kept])


def _with_server(rows: NDArray[np.int64], which: Numbers, num_clients: int) -> NDArray[np.int64]:
    return np.concatenate([rows[which], rows[num_clients:]])
