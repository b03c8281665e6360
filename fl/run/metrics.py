"""From what a round gave to the lines of metrics.jsonl and clients.jsonl, and from those to summary.json.

The keys are those of fl/run/keys.py. Accuracies are over all clients, unweighted, each with the model
that it would use (algorithms.md 2.10); means of what happens in training are over the clients that trained.
"""

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, pstdev
from typing import Any, NamedTuple

import numpy as np

import sparse_engine as se
from fl.algorithms.base import Round, mean
from fl.clients import columns
from fl.clients.base import Population
from fl.config import Config
from fl.keys import Key, summed
from fl.run import joules, keys, stopping
from fl.run.meters.base import Readings
from fl.world.clock import Clock
from fl.world.schedule import Floats

Record = dict[str, Any]
LAST = 5  # rounds at the end, whose mean accuracy is reported beside the best round
_COUNTS = ("", "_paper", "_dense")  # columns of Traffic


class Modelled(NamedTuple):
    """A round as the device model has it: nothing here is measured."""

    time_s: float
    energy_j: float
    start_s: Floats
    finish_s: Floats


def modelled(result: Round, clock: Clock) -> Modelled:
    """The round that is over, by the operations and bytes that it had: those who waited in the plan wait for
    the same ones, and `clock` is the one that it was planned with."""
    reports = result.reports
    flop = [reports[k].flop if k in reports else 0 for k in range(len(result.models))]
    received = result.traffic.down[:, 0]
    timed = clock.timed(result.schedule, flop=flop, received=received)
    cost = clock.cost(timed, flop=flop, received=received)
    return Modelled(cost.time_s, cost.energy_j, timed.start, timed.finish)


def round_record(
    t: int,
    result: Round,
    modelled: Modelled,
    lr: float,
    readings: Readings,
    algorithm: str = "",
) -> Record:
    """One line of metrics.jsonl; `readings` are those of the meters, `algorithm` says what it has beside."""
    trained = [result.reports[k] for k in sorted(result.reports)]
    accuracy, before = _accuracies(result)
    schedule = result.schedule
    return {
        "round": t,
        "accuracy_mean": mean(accuracy),
        "accuracy_min": min(_present(accuracy), default=None),
        "accuracy_max": max(_present(accuracy), default=None),
        "accuracy_std": pstdev(_present(accuracy)) if _present(accuracy) else None,
        "accuracy_before": mean(before),
        "loss": mean(report.loss for report in trained),
        **_densities(result.models),
        "trained": len(trained),
        "steps": sum(report.steps for report in trained),
        "samples": sum(report.seen for report in trained),
        "flop_round": sum(report.flop for report in trained),
        "flop_dense": sum(report.flop_dense for report in trained),
        **_traffic(result),
        "sim_time_s": modelled.time_s,
        "sim_energy_j": modelled.energy_j,
        "depth": schedule.depth,
        "parallelism": schedule.parallelism,
        **_over_clients(result.columns, algorithm),
        **result.facts,
        "lr": lr,
        **readings,
        "train_s": sum(report.train_s for report in trained),
    }


def client_records(t: int, result: Round, modelled: Modelled) -> Iterable[Record]:
    """The lines of clients.jsonl: one for every client that trained."""
    densities = _density(columns.counts(result.models), result.models[0].layout)
    for k, report in sorted(result.reports.items()):
        yield {
            "round": t,
            "client": k,
            "accuracy": report.accuracy,
            "accuracy_before": report.accuracy_before,
            "loss": report.loss,
            "samples": report.samples,
            "density": densities[k],
            "flop": report.flop,
            "bytes_up": int(result.traffic.up[k, 0]),
            "bytes_down": int(result.traffic.down[k, 0]),
            "wave": int(result.schedule.wave[k]),
            "waited_for": result.schedule.wait.of(k).tolist(),
            "sim_start_s": float(modelled.start_s[k]),
            "sim_finish_s": float(modelled.finish_s[k]),
            **{name: column[k] for name, column in result.columns.items()},
            "train_s": report.train_s,
        }


def summarise(
    cfg: Config, rounds: Sequence[Record], path: str, workers: int, environment: Mapping[str, str]
) -> Record:
    """summary.json of the rounds of a run; `path`: how clients were trained."""
    stop = stopping.early(cfg, rounds)
    return {
        "name": cfg.name,
        "algorithm": cfg.algorithm,
        "seed": cfg.seed,
        "num_clients": cfg.num_clients,
        "num_rounds": cfg.num_rounds,
        "stopped_early": stop and stop._asdict(),
        "kernels": cfg.training.kernels,
        "path": path,
        "values": cfg.messages.values,
        **accuracies(rounds),
        **{key.name: over_rounds(key, rounds) for key in keys.sums(cfg.algorithm)},
        **joules.shares(rounds),
        "workers": workers,
        "environment": dict(environment),
    }


def over_rounds(key: Key, rounds: Sequence[Record]) -> Any:
    """A key of a run, made from the lines of its rounds."""
    if key.sums == "rounds":
        return [line["round"] for line in rounds if (line.get(key.of) if key.null else line[key.of])]
    return summed(key.sums, [line.get(key.of) if key.null else line[key.of] for line in rounds])


def accuracies(rounds: Sequence[Record]) -> Record:
    """Return the accuracies of a run: its best round, the mean of its last five (or all, if fewer), its last
    one; likewise of the server's model, null if there is none. With more rounds a best round gets luckier;
    the mean of the last is less of a draw."""
    best, shared = _best(rounds, "accuracy_mean"), _best(rounds, "accuracy_global")
    return {
        "accuracy_best": best and best["accuracy_mean"],
        "round_best": best and best["round"],
        f"accuracy_last{LAST}": _last(rounds, "accuracy_mean"),
        "accuracy_last": rounds[-1]["accuracy_mean"],
        "accuracy_global_best": shared and shared["accuracy_global"],
        f"accuracy_global_last{LAST}": _last(rounds, "accuracy_global"),
        "accuracy_global_last": rounds[-1].get("accuracy_global"),
    }


def _over_clients(columns: Mapping[str, Sequence[Any]], algorithm: str) -> Record:
    """Keys of a round that are made from clients' columns: those of ours, and of the algorithm that ran."""
    made = [key for key in keys.declared("round", algorithm) if key.of]
    return {key.name: summed(key.sums, columns.get(key.of, ())) for key in made}


def _present(values: Iterable[Any]) -> list[Any]:
    return [value for value in values if value is not None]


def _accuracies(result: Round) -> tuple[Sequence[float | None], Sequence[float | None]]:
    """Return the accuracies of every client's model, after and before training."""
    if result.accuracy is not None and result.accuracy_before is not None:
        return result.accuracy, result.accuracy_before
    if idle := len(result.models) - len(result.reports):
        raise ValueError(f"expected Round.accuracy for all clients, got none, and {idle} did not train")
    each = [result.reports[k] for k in sorted(result.reports)]
    return [report.accuracy for report in each], [report.accuracy_before for report in each]


def _best(rounds: Sequence[Record], key: str) -> Record | None:
    """The first of the best."""
    there = [line for line in rounds if line.get(key) is not None]
    return max(there, key=lambda line: line[key], default=None)


def _last(rounds: Sequence[Record], key: str) -> float | None:
    return mean(line.get(key) for line in rounds[-LAST:])


def _densities(models: Population[se.Model]) -> Record:
    layout = models[0].layout
    stored = columns.counts(models)
    densities = _density(stored, layout)
    layers = np.mean(stored, axis=0) / np.maximum(np.array(layout.segments.sizes), 1)
    return {
        "density_mean": fmean(densities),
        "density_min": min(densities),
        "density_max": max(densities),
        "layer_density": dict(zip(layout.names, layers.tolist(), strict=True)),
    }


def _density(stored: columns.Counts, layout: se.Layout) -> list[float]:
    """`Model.density` of every client."""
    total = layout.segments.numel
    found: list[float] = (stored.sum(1) / total if total else np.ones(len(stored))).tolist()
    return found


def _traffic(result: Round) -> Record:
    up, down = result.traffic
    totals = {f"bytes_total{count}": int(up[:, i].sum()) for i, count in enumerate(_COUNTS)}
    clients = up[: len(result.models)]  # without a server
    means = {f"bytes_up_mean{count}": float(clients[:, i].mean()) for i, count in enumerate(_COUNTS)}
    busiest = {f"bytes_busiest{count}": int(down[:, i].max()) for i, count in enumerate(_COUNTS)}
    return totals | means | busiest
