"""What was seen while somebody worked for a client: it travels with the result of that work."""

from dataclasses import dataclass, replace
from typing import Generic, NamedTuple, TypeVar

Value = TypeVar("Value")


@dataclass(frozen=True, kw_only=True)
class Report:
    """Accuracies (None: not tested), the mean loss in training (None: no sample was seen), and the work.
    `samples` are the client's own, `seen` those of all `steps` (batches): epochs count."""

    accuracy: float | None = None
    accuracy_before: float | None = None
    loss: float | None = None
    samples: int = 0
    seen: int = 0
    steps: int = 0
    flop: int = 0
    flop_dense: int = 0
    train_s: float = 0.0

    def plus(self, work: "Report") -> "Report":
        """This report with the steps, operations and seconds of `work` added."""
        return replace(
            self,
            seen=self.seen + work.seen,
            steps=self.steps + work.steps,
            flop=self.flop + work.flop,
            flop_dense=self.flop_dense + work.flop_dense,
            train_s=self.train_s + work.train_s,
        )


class Done(NamedTuple, Generic[Value]):
    """A result with its report; None where there was nothing to report, as after a mere test."""

    value: Value
    report: Report | None
