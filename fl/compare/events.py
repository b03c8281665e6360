"""Who is told what a comparison does."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from fl.compare.plan import Plan, Run
from fl.run.events import Listener, Record


class Display(Listener):
    """Hears of the runs of a comparison one after the other, and does nothing."""

    def comparison_started(
        self, plan: Plan, path: Path, left: Sequence[Run], damaged: Mapping[Run, str]
    ) -> None:
        """`damaged`: of the runs that are not left, with what is wrong."""

    def run_finished(self, run: Run, summary: Record) -> None: ...

    def run_failed(self, run: Run, why: str) -> None: ...

    def comparison_stopped(self) -> None:
        """Finished, failed or interrupted."""
