"""What a comparison gave: a row per run, means and deviations over seeds, and what a target accuracy cost.

Accuracy of a round is `accuracy_mean`: over all clients, each with the model that it would use. The server's
model stands beside it under its own name.

The target accuracy is the user's, or 95 % of the worst final accuracy (last round, mean over seeds) among the
algorithms that learn: those that end with at least half of the best one's. A run reaches it in the first
round at or above it, and has paid for all rounds up to that one, itself included.

comparison.json, of the directory described in fl/compare/runs.py
    name, description, num_clients, num_rounds
    complete        all runs are finished, and none is damaged
    target          null, or {accuracy, meaning}
    differences     settings in which entries differ: {key, values: {name: value}, equal_work, text}
    runs            one object a run:
        name, algorithm, seed, folder
        state       finished, unfinished, failed, or damaged (fl/compare/check.py)
        message     why it failed, what is damaged, how far it is, from where on it is mixed, or empty
        figures     null unless finished, else
            rounds                                          how many ran: fewer where it stopped early
            accuracy_best, round_best, accuracy_last5, accuracy_last    as in summary.json (fl/run/keys.py)
            accuracy_global_best, accuracy_global_last5, accuracy_global_last
                                                            of the server's model, null where there is none
            sparsity_last                                   share of prunable weights that is not stored
            bytes_total, bytes_total_paper, bytes_total_dense       as in summary.json, all rounds
            bytes_busiest_mean, bytes_busiest_max, bytes_busiest_last  over rounds;  also _paper, _dense
            flop_total, flop_total_dense
            wall_s, train_s                                 measured
            energy_j, energy_net_j, energy_cpu_j, energy_dram_j, energy_gpu_j, energy_per_..._j
                                                            measured; null where joules of a round are unknown
            sim_time_s, sim_energy_j                        modelled
        to_target   null where it was not reached, else rounds and bytes_total, bytes_total_paper, flop_total,
                    wall_s, train_s, energy_j ..., sim_time_s, sim_energy_j until then
    algorithms      {name: {algorithm, planned, finished, reached: numbers of runs, figures, to_target}},
                    figures and to_target with {mean, sd} over seeds; sd (of a sample) is null for one seed
    environment     {fact: value}, of all runs; several values where runs differ. Idle power stays with runs
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

from fl.compare import check, runs
from fl.compare.differences import differences
from fl.compare.plan import Plan, Run
from fl.report.summary import mixed_lines
from fl.run import joules, keys, metrics
from fl.run.meters.energy import IDLE
from fl.run.recorded import Record, Recorded
from fl.units import counted

SHARE = 0.95  # of the worst final accuracy among those that learn
LEARNS = 0.5  # of the best final accuracy
_COUNTS = ("", "_paper", "_dense")
_COSTS = {key.name for key in (*keys.costs(), *keys.RUN_SHARES)}


class Spread(NamedTuple):
    mean: float
    sd: float | None  # None: one value


class Target(NamedTuple):
    accuracy: float
    meaning: str


@dataclass(frozen=True)
class Result:
    """One run, as far as it is."""

    run: Run
    algorithm: str
    recorded: Recorded | None  # None: it was not started, or it is damaged
    failure: str | None
    damage: str | None = None

    @property
    def finished(self) -> bool:
        return self.recorded is not None and self.recorded.finished

    @property
    def rounds(self) -> list[Record]:
        return self.recorded.rounds if self.recorded is not None else []

    @property
    def state(self) -> str:
        if self.damage is not None:
            return "damaged"
        return "finished" if self.finished else "failed" if self.failure is not None else "unfinished"

    @property
    def message(self) -> str:
        if self.finished:
            assert self.recorded is not None
            lines = mixed_lines(self.recorded.summary or {})
            return f"mixed, as no single machine repeats it: {'; '.join(lines)}" if lines else ""
        if self.damage is not None:
            again = (
                f"put its files back, or remove {self.run.folder} and resume the comparison to run it again"
            )
            return f"{self.damage}; {again}"
        so_far = f"{counted(len(self.rounds), 'round')} so far" if self.rounds else "not started"
        return self.failure if self.failure is not None else so_far


@dataclass(frozen=True)
class Comparison:
    plan: Plan
    results: Sequence[Result]

    def of(self, name: str) -> list[Result]:
        return [result for result in self.results if result.run.name == name]

    def finished(self, name: str) -> list[Result]:
        return [result for result in self.of(name) if result.finished]

    @cached_property
    def target(self) -> Target | None:
        if self.plan.target is not None:
            return Target(self.plan.target, "given")
        finals = [
            spread(one.rounds[-1]["accuracy_mean"] for one in self.finished(name))
            for name in self.plan.entries
        ]
        means = [final.mean for final in finals if final is not None]
        learn = [mean for mean in means if mean >= LEARNS * max(means)]
        if not learn:
            return None
        return Target(
            SHARE * min(learn), f"{100 * SHARE:.0f} % of the worst final accuracy, {100 * min(learn):.2f} %"
        )

    def to_target(self, rounds: Sequence[Record]) -> Record | None:
        return cost_of(rounds, self.target.accuracy) if self.target is not None else None

    @property
    def damaged(self) -> bool:
        return any(result.damage is not None for result in self.results)

    @property
    def complete(self) -> bool:
        return all(result.finished for result in self.results)

    def to_json(self) -> Record:
        base, target = self.plan.base, self.target
        return {
            "name": base.name,
            "description": base.description,
            "num_clients": base.num_clients,
            "num_rounds": base.num_rounds,
            "complete": self.complete,
            "target": target._asdict() if target is not None else None,
            "differences": [one.to_json() for one in differences(self.plan)],
            "runs": [self._row(result) for result in self.results],
            "algorithms": {name: self._means(name) for name in self.plan.entries},
            "environment": self.environment,
        }

    @property
    def environment(self) -> dict[str, str]:
        found: dict[str, dict[str, None]] = {}
        for result in self.results:
            if result.recorded is not None and result.recorded.finished and result.recorded.summary:
                summary = result.recorded.summary
                for fact, value in {**summary["environment"], "workers": str(summary["workers"])}.items():
                    if fact != IDLE:  # a number of its own in every run
                        found.setdefault(fact, {})[value] = None
        return {fact: " / ".join(values) for fact, values in found.items()}

    def _row(self, result: Result) -> Record:
        run, done = result.run, result.finished
        return {
            "name": run.name,
            "algorithm": result.algorithm,
            "seed": run.seed,
            "folder": run.folder,
            "state": result.state,
            "message": result.message,
            "figures": figures(result.rounds) if done else None,
            "to_target": self.to_target(result.rounds) if done else None,
        }

    def _means(self, name: str) -> Record:
        done = self.finished(name)
        rows = [figures(result.rounds) for result in done]
        costs = [cost for result in done if (cost := self.to_target(result.rounds)) is not None]
        return {
            "algorithm": self.plan.entries[name].algorithm,
            "planned": len(self.of(name)),
            "finished": len(done),
            "reached": len(costs),
            "figures": _spreads(rows),
            "to_target": _spreads(costs),
        }


def read(path: Path) -> Comparison:
    """The comparison in `path`, finished or not."""
    plan = runs.read_plan(path)
    return Comparison(plan, [_result(plan, run, run.below(path)) for run in plan.runs])


def figures(rounds: Sequence[Record]) -> Record:
    """Return the figures of a finished run."""
    return {
        "rounds": len(rounds),
        **metrics.accuracies(rounds),
        "sparsity_last": 1 - rounds[-1]["density_mean"],
        **{key.name: metrics.over_rounds(key, rounds) for key in keys.references()},
        **_busiest(rounds),
        **_sums(rounds),
        **joules.shares(rounds),
    }


def cost_of(rounds: Sequence[Record], target: float) -> Record | None:
    """What was paid until the first round at or above `target`; None: none was."""
    for i, line in enumerate(rounds):
        reached = line["accuracy_mean"]
        if reached is not None and reached >= target:
            return {"rounds": i + 1, **_sums(rounds[: i + 1])}
    return None


def spread(values: Iterable[float | None]) -> Spread | None:
    """Return the spread of the values that are not None; None if there are none."""
    there = [value for value in values if value is not None]
    if not there:
        return None
    return Spread(fmean(there), stdev(there) if len(there) > 1 else None)


def _result(plan: Plan, run: Run, folder: Path) -> Result:
    told, damage = check.examined(plan, run, folder)
    return Result(run, plan.entries[run.name].algorithm, told, runs.why_failed(folder), damage)


def _spreads(rows: Sequence[Record]) -> dict[str, dict[str, Any] | None] | None:
    if not rows:
        return None
    spreads = {key: _spread(key, [row[key] for row in rows]) for key in rows[0]}
    return {key: one._asdict() if one is not None else None for key, one in spreads.items()}


def _spread(key: str, values: Sequence[float | None]) -> Spread | None:
    """Costs that one seed does not know are unknown: a mean over the others would be of other runs."""
    return None if key in _COSTS and None in values else spread(values)


def _sums(rounds: Sequence[Record]) -> Record:
    return {key.name: metrics.over_rounds(key, rounds) for key in keys.costs()}


def _busiest(rounds: Sequence[Record]) -> Record:
    found: Record = {}
    for count in _COUNTS:
        each = [line[f"bytes_busiest{count}"] for line in rounds]
        for name, value in (("mean", fmean(each)), ("max", max(each)), ("last", each[-1])):
            found[f"bytes_busiest_{name}{count}"] = value
    return found
