"""What a comparison says while it runs: one display over all runs, bars on a terminal, lines elsewhere."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from time import perf_counter

from rich.console import Console
from rich.progress import TimeElapsedColumn

from fl.cli.display import bars, figures
from fl.compare.events import Display
from fl.compare.plan import Plan, Run
from fl.config import Config
from fl.run.events import Record
from fl.units import duration, percent


class Estimate:
    """How long is left: a round of a name takes what its rounds took so far, one of another what all took."""

    def __init__(self, runs: Iterable[Run], rounds: int) -> None:
        self.left = dict.fromkeys(runs, rounds)
        self.took: dict[str, list[float]] = {}

    def finished(self, run: Run, seconds: float) -> None:
        """One more round."""
        self.left[run] -= 1
        self.took.setdefault(run.name, []).append(seconds)

    @property
    def seconds(self) -> float:
        """The seconds that all runs still need, as estimated after the first round."""
        every = [one for took in self.took.values() for one in took]
        return sum(rounds * fmean(self.took.get(run.name, every)) for run, rounds in self.left.items())


class Shown(Display):
    """Prints what has ended."""

    run: Run  # the one that is on

    def __init__(self, console: Console) -> None:
        self.console = console
        self.facts: dict[str, str] = {}  # of the last run's meters

    def comparison_started(
        self, plan: Plan, path: Path, left: Sequence[Run], damaged: Mapping[Run, str]
    ) -> None:
        """`damaged`: of the runs that are not left, with what is wrong."""
        self.runs, self.rounds = plan.runs, plan.base.num_rounds
        self.estimate = Estimate(left, self.rounds)
        counts = {"finished": len(self.runs) - len(left) - len(damaged), "damaged": len(damaged)}
        done = "".join(f", {count} of them {what}" for what, count in counts.items() if count)
        self.note(f"{plan.base.name}: {', '.join(plan.entries)}: {len(self.runs)} runs{done}, in {path}")
        for run, why in damaged.items():
            self.note(f"{self._place(run)} is damaged: {why}")

    def meters_chosen(self, facts: Mapping[str, str]) -> None:
        if facts != self.facts:  # the same for most runs
            self.facts = dict(facts)
            for fact, what in facts.items():
                self.note(f"{fact}: {what}")

    def run_started(self, config: Config, path: Path | None, first: int) -> None:
        self.run = next(run for run in self.runs if path is not None and run.folder == path.name)
        self.rounds, self.last = config.num_rounds, perf_counter()
        self.estimate.left[self.run] = self.rounds - first

    def round_finished(self, record: Record) -> None:
        now = perf_counter()
        self.estimate.finished(self.run, now - self.last)
        self.last = now

    def run_finished(self, run: Run, summary: Record) -> None:
        self.estimate.left[run] = 0  # it may have stopped early
        best, last = (percent(summary[f"accuracy_{which}"]) for which in ("best", "last"))
        self.note(f"{self._place(run)}: accuracy {last}, best {best}, {duration(summary['wall_s'])}")

    def run_failed(self, run: Run, why: str) -> None:
        self.estimate.left[run] = 0
        self.note(f"{self._place(run)} failed: {why}")

    def note(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _place(self, run: Run) -> str:
        return f"run {self.runs.index(run) + 1}/{len(self.runs)}  {run}"

    def _left(self) -> str:
        return f"left {duration(self.estimate.seconds)}"


class CompareLines(Shown):
    """One line per round, for logs and pipes."""

    def round_finished(self, record: Record) -> None:
        super().round_finished(record)
        t = f"round {record['round']:>4}/{self.rounds - 1}"
        self.note(f"{self._place(self.run)}  {t}  {figures(record)}  {self._left()}")


class CompareBars(Shown):
    """A bar for the rounds of all runs, one for those of a run, and one for the clients of a round."""

    def comparison_started(
        self, plan: Plan, path: Path, left: Sequence[Run], damaged: Mapping[Run, str]
    ) -> None:
        super().comparison_started(plan, path, left, damaged)
        self.progress = bars(self.console, TimeElapsedColumn())
        total, done = len(self.runs), len(self.runs) - len(left)
        self.all = self.progress.add_task("runs", total=total, completed=done, figures="")
        self.one = self.progress.add_task("rounds", total=self.rounds, figures="")
        self.clients = self.progress.add_task("clients", total=plan.base.num_clients, figures="")
        self.progress.start()

    def run_started(self, config: Config, path: Path | None, first: int) -> None:
        super().run_started(config, path, first)
        self.asked, self.num_clients = 0, config.num_clients
        self.progress.reset(
            self.one, description=str(self.run), total=self.rounds, completed=first, figures=""
        )
        self.progress.reset(self.clients, total=self.num_clients, description="clients")

    def round_started(self, t: int) -> None:
        self.asked = 0
        self.progress.reset(self.clients, description=f"round {t}", figures="")

    def wave_started(self, clients: int) -> None:
        self.asked += clients
        self.progress.update(self.clients, total=max(self.num_clients, self.asked))

    def client_finished(self, k: int) -> None:
        self.progress.advance(self.clients)

    def round_finished(self, record: Record) -> None:
        super().round_finished(record)
        self.progress.update(self.one, advance=1, figures=figures(record))
        self.progress.update(self.all, figures=self._left(), refresh=True)

    def run_finished(self, run: Run, summary: Record) -> None:
        super().run_finished(run, summary)
        self.progress.advance(self.all)

    def run_failed(self, run: Run, why: str) -> None:
        super().run_failed(run, why)
        self.progress.advance(self.all)

    def comparison_stopped(self) -> None:
        self.progress.stop()


def for_console(console: Console) -> Display:
    return CompareBars(console) if console.is_terminal else CompareLines(console)
