"""Directories of comparisons that nobody ran."""

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path

from fl import config
from fl.compare import plan as compare_plan
from fl.compare.plan import Plan
from fl.run import metrics, stopping

KEYS = (
    "bytes_total bytes_total_paper bytes_total_dense bytes_busiest bytes_busiest_paper bytes_busiest_dense "
    "flop_round flop_dense sim_time_s sim_energy_j wall_s train_s"
).split()


def line(t: int, accuracy: float | None, seed: object, **changes: object) -> dict:
    """A line of metrics.jsonl; no two values are the same."""
    rng = random.Random(f"{seed} {t}")
    values = {key: rng.randrange(1, 10**6) for key in KEYS}
    usual = {"accuracy_mean": accuracy, "accuracy_before": None, "density_mean": rng.random(), "pruned": 0}
    return {"round": t, **usual, **values, **changes}


def make(
    path: Path,
    accuracies: Mapping[str, Sequence[Sequence[float | None]]],
    changes: Sequence[str] = (),
    target: float | None = None,
    lines: Mapping[str, Mapping] | None = None,
) -> Plan:
    """{name: [seed][round]}; all of num_rounds make a finished run, an empty list one that was not started.

    A name that is no algorithm's is one more da_dpfl; `lines`: {name: changes of its lines}.
    """
    from fl import algorithms

    names = ",".join(name if name in algorithms.registered() else f"{name}=da_dpfl" for name in accuracies)
    seeds = ",".join(f"{name}={len(runs)}" for name, runs in accuracies.items())
    longest = max(len(run) for runs in accuracies.values() for run in runs)
    changes = [f"num_rounds={max(longest, 1)}", *changes]
    plan = compare_plan.make("demo", names, seeds, changes, target)
    path.mkdir(parents=True)
    (path / "plan.json").write_text(json.dumps(plan.to_json()))
    for run in plan.runs:
        given = accuracies[run.name][run.seed]
        if given:
            own = (lines or {}).get(run.name, {})
            rounds = [line(t, accuracy, run, **own) for t, accuracy in enumerate(given)]
            _write(path / run.folder, plan.config(run), rounds)
    return plan


def _write(path: Path, cfg: config.Config, rounds: Sequence[dict]) -> None:
    path.mkdir()
    (path / "config.toml").write_text(config.dumps(cfg))
    (path / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rounds))
    counts = [[k % 7 + c for c in range(2)] for k in range(cfg.num_clients)]
    partition = {"classes": ["cat", "dog"], "train": counts, "test": counts}
    (path / "partition.json").write_text(json.dumps(partition))
    if len(rounds) == stopping.length(cfg, rounds):
        summary = metrics.summarise(
            cfg, rounds, "program (5 steps)", 2, {"torch": "9.9", "commit": f"c0ffee{cfg.seed}"}
        )
        (path / "summary.json").write_text(json.dumps(summary))
