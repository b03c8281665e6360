"""`sparsefl bench rounds`: the same run on sparse kernels and on dense ones with masks, for a few seeds.

Both runs of a seed share data, partition, first weights and every random draw, and take turns round by round
(also in going first), so that a slow moment of the machine hits both. Beyond rounding, only time differs:

    accuracy    after local training, mean over clients
    train_s     seconds of local training, summed over clients;   wall_s   of the whole round, on `workers`;
    cpu_s       of the processor, in the whole round: less open to what else runs on the machine

The curves agree within the spread of seeds where |mean sparse - mean dense| <= s, with s^2 the mean of the
two variances over seeds. Seeds have partitions of their own, so s is wide: the paired difference (sparse less
dense of one seed) is given too.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev
from time import process_time
from typing import Any

from fl import config
from fl.config import Config
from fl.keys import Key
from fl.report import picture
from fl.run.loop import Options
from fl.run.meters import usual
from fl.run.simulation import Simulation
from sparse_engine.hardware import cores
from sparsefl.bench import report, running
from sparsefl.bench.meta import meta

Row = dict[str, Any]
KERNELS = ("sparse", "dense")
TIMES = ("train_s", "wall_s", "cpu_s")
_COLUMNS = {"accuracy": "accuracy_mean", "accuracy_before": "accuracy_before", "loss": "loss",
            "density": "density_mean", "pruned": "pruned", **{key: key for key in TIMES}}  # fmt: skip
QUICK = ("num_clients=4", "topology.degree=2", "num_rounds=3", "training.epochs=1")


def settings(preset: str, number: int, changes: Sequence[str]) -> Config:
    """The run that is measured."""
    whole = f"run.patience={config.NONE}"  # both kinds of kernels run the same rounds
    return config.load(preset, [f"num_rounds={number}", *changes, whole])


def quick(changes: Sequence[str]) -> Config:
    """A small run, for a look."""
    return config.load("demo", [*QUICK, *changes])


def command(
    cfg: Config, seeds: Sequence[int], workers: int | None, path: Path | None, plot: Path | None
) -> int:
    """Run, save after every seed, show the table, draw the curves."""
    from sparsefl.bench import rounds_plot  # which needs this module

    workers = workers or cores()
    result: report.Result = {}
    for result in results(cfg, seeds, workers, shown=lambda rows: running.shown(rows, told)):
        result["meta"] = meta(1, workers=workers, config=config.dumps(cfg))
        if path:
            report.save(result, path)
    report.console().print(report.markdown(result), markup=False, highlight=False, soft_wrap=True)
    if plot:
        picture.draw(plot, rounds_plot.page(result))
    return 0


def told(row: Row) -> str:
    """A row in a line, for progress."""
    times = f"{row['train_s']:.2f} s of training, {row['wall_s']:.2f} s in all"
    return f"seed {row['seed']}, round {row['round']}, {row['kernels']} kernels: {times}"


def results(
    cfg: Config, seeds: Sequence[int], workers: int, shown: Callable[[Iterator[Row]], Iterator[Row]] = iter
) -> Iterator[dict[str, Any]]:
    """The result so far after every seed. `shown` hands the rows on."""
    rows: list[Row] = []
    for row in shown(run(cfg, seeds, workers)):
        rows.append(row)
        if len(rows) % (len(KERNELS) * cfg.num_rounds) == 0:
            summary = summarise(rows)
            yield {"rows": rows, "summary": summary, "table": as_table(cfg, summary)}


def run(cfg: Config, seeds: Sequence[int], workers: int) -> Iterator[Row]:
    """A row a seed, round and kind of kernel."""
    for seed in seeds:
        yield from _seed(config.changed(cfg, [f"seed={seed}"]), workers)


def _seed(cfg: Config, workers: int) -> Iterator[Row]:
    with ExitStack() as stack:
        runs = {kernels: _lines(cfg, kernels, workers, stack) for kernels in KERNELS}
        for t in range(cfg.num_rounds):
            for kernels in KERNELS if t % 2 == 0 else reversed(KERNELS):
                line = next(runs[kernels])
                found = {name: line.get(key, 0) for name, key in _COLUMNS.items()}
                yield {"seed": cfg.seed, "round": t, "kernels": kernels, **found}


def _lines(cfg: Config, kernels: str, workers: int, stack: ExitStack) -> Iterator[Row]:
    """One of the two runs, a round at a time, without files."""
    options = Options(workers, meters=[*usual(), _Processor()])
    made = Simulation(config.changed(cfg, [f"training.kernels={kernels}"]), options=options)
    stack.callback(made.close)
    return iter(made)


class _Processor:
    """Seconds of the processor that a round took: a Meter."""

    keys = (Key("cpu_s", "of the processor, in the whole round", unit="s", kind="measured"),)

    def start(self) -> None:
        self._began = process_time()

    def stop(self) -> dict[str, float | None]:
        return {"cpu_s": process_time() - self._began}


def summarise(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the summary over the seeds that have all rounds."""
    seeds = values(rows, "seed")
    times = {key: {kernels: fmean(_of(rows, kernels, key)) for kernels in KERNELS} for key in TIMES}
    ratios = {key: [_ratio([row for row in rows if row["seed"] == s], key) for s in seeds] for key in times}
    return {
        "seeds": seeds,
        "rounds": len(values(rows, "round")),
        **{
            kernels: {
                "accuracy_last": spread_of([curve[-1] for curve in all_curves(rows, kernels)]),
                "accuracy_best": spread_of([max(curve) for curve in all_curves(rows, kernels)]),
                "density_last": fmean(curve(rows, s, kernels, "density")[-1] for s in seeds),
                **{key: means[kernels] for key, means in times.items()},
            }
            for kernels in KERNELS
        },
        "times_ours": {key: _ratio(rows, key) for key in times},
        "times_ours_by_seed": ratios,
        "agreement": agreement(rows),
    }


def agreement(rows: Sequence[Row]) -> dict[str, Any]:
    """How far the two mean curves are apart, and whether that is within the spread of seeds."""
    sparse, dense = (all_curves(rows, kernels) for kernels in KERNELS)
    gaps = [fmean(a) - fmean(b) for a, b in zip(by_round(sparse), by_round(dense), strict=True)]
    paired = [fmean(a) - fmean(b) for a, b in zip(sparse, dense, strict=True)]
    found = {"largest_gap": max(map(abs, gaps)), "paired_difference": spread_of(paired)}
    if len(sparse) < 2:
        return found | {"rounds_within_spread": None, "agree": None}
    spreads = [
        sqrt((stdev(a) ** 2 + stdev(b) ** 2) / 2)
        for a, b in zip(by_round(sparse), by_round(dense), strict=True)
    ]
    within = sum(abs(gap) <= spread for gap, spread in zip(gaps, spreads, strict=True))
    return found | {
        "spread_of_seeds": fmean(spreads),
        "rounds_within_spread": within,
        "agree": within == len(gaps),
    }


def verdict(summary: dict[str, Any]) -> str:
    """One sentence on the curves."""
    found, rounds = summary["agreement"], summary["rounds"]
    gap = f"the mean curves are at most {100 * found['largest_gap']:.2f} points apart"
    paired = f"sparse less dense of one seed is {_points(found['paired_difference'], '+')} on average"
    if found["agree"] is None:
        return f"One seed has no spread: {gap}."
    within = "all" if found["agree"] else f"{found['rounds_within_spread']} of the"
    spread = f"{100 * found['spread_of_seeds']:.2f} points on average"
    return f"Within the spread of seeds ({spread}) in {within} {rounds} rounds: {gap}; {paired}."


def as_table(cfg: Config, summary: dict[str, Any]) -> dict[str, Any]:
    """For `bench table`."""
    sparse, dense, times = summary["sparse"], summary["dense"], summary["times_ours"]
    what = f"{cfg.name}: {cfg.num_clients} clients, {summary['rounds']} rounds, {len(summary['seeds'])} seeds"
    names = {
        "train_s": "local training, s a round, summed over clients",
        "wall_s": "whole round, s",
        "cpu_s": "whole round, s of processor time",
    }
    lines = [
        ["accuracy of the last round, %", *(_points(x["accuracy_last"]) for x in (sparse, dense)), ""],
        ["accuracy of the best round, %", *(_points(x["accuracy_best"]) for x in (sparse, dense)), ""],
        ["density at the end", *(f"{x['density_last']:.3f}" for x in (sparse, dense)), ""],
    ]
    for key, name in names.items():
        by_seed = summary["times_ours_by_seed"][key]
        span = f"{times[key]:.2f} ({min(by_seed):.2f} to {max(by_seed):.2f})"
        lines.append([name, f"{sparse[key]:.2f}", f"{dense[key]:.2f}", span])
    head = [what, "sparse", "dense with masks", "dense / sparse"]
    return {"head": head, "rows": lines, "note": verdict(summary)}


def means(rows: Sequence[Row], kernels: str, key: str) -> list[float]:
    return [fmean(values) for values in by_round(all_curves(rows, kernels, key))]


def all_curves(rows: Sequence[Row], kernels: str, key: str = "accuracy") -> list[list[float]]:
    """Return one curve per seed."""
    return [curve(rows, seed, kernels, key) for seed in values(rows, "seed")]


def curve(rows: Sequence[Row], seed: int, kernels: str, key: str) -> list[float]:
    found = [row for row in rows if (row["seed"], row["kernels"]) == (seed, kernels)]
    return [row[key] for row in sorted(found, key=lambda row: row["round"])]


def by_round(found: list[list[float]]) -> list[tuple[float, ...]]:
    return [*zip(*found, strict=True)]


def values(rows: Sequence[Row], key: str) -> list[int]:
    return sorted({row[key] for row in rows})


def _of(rows: Sequence[Row], kernels: str, key: str) -> list[float]:
    return [row[key] for row in rows if row["kernels"] == kernels]


def _ratio(rows: Sequence[Row], key: str) -> float:
    """Dense over sparse, of the sums."""
    return sum(_of(rows, "dense", key)) / sum(_of(rows, "sparse", key))


def spread_of(values: Sequence[float]) -> dict[str, float]:
    return {"mean": fmean(values), "sd": stdev(values) if len(values) > 1 else 0.0}


def _points(spread: dict[str, float], sign: str = "") -> str:
    return f"{100 * spread['mean']:{sign}.2f} ± {100 * spread['sd']:.2f}"
