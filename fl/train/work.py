"""Work for many clients, and what runs it (Executor)."""

from collections.abc import Callable, Iterator, Mapping
from typing import Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

from fl.train.report import Done, Report
from fl.train.trainer import Trainer

Task = TypeVar("Task")
Value = TypeVar("Value")
Task_contra = TypeVar("Task_contra", contravariant=True)

Work = Callable[[Trainer, int, Task], Done[Value]]
"""work(trainer, k, task): what is done for client k. It must not depend on who ran before it."""


@runtime_checkable
class Together(Protocol[Task_contra, Value]):
    """Work that may be done for several clients at a time: an executor then hands out a few at once."""

    def many(self, trainer: Trainer, tasks: Mapping[int, Task_contra]) -> Mapping[int, Done[Value]]: ...


class Outcome(NamedTuple, Generic[Value]):
    """What came of the work for client k."""

    k: int
    value: Value
    report: Report | None


class Executor(Protocol):
    """Runs work for many clients, side by side or not."""

    def run(self, work: Work[Task, Value], tasks: Mapping[int, Task]) -> Iterator[Outcome[Value]]:
        """An outcome per client, as they finish: in any order. The first error stops the others."""


class Results(NamedTuple, Generic[Value]):
    """Values of all clients that had a task, and reports of those that have one, in the order of tasks."""

    values: dict[int, Value]
    reports: dict[int, Report]


def collect(executor: Executor, work: Work[Task, Value], tasks: Mapping[int, Task]) -> Results[Value]:
    """The outcomes by client, whatever the order in which they finished."""
    found = {outcome.k: outcome for outcome in executor.run(work, tasks)}
    reports = {k: found[k].report for k in tasks}
    return Results(
        {k: found[k].value for k in tasks},
        {k: report for k, report in reports.items() if report is not None},
    )
