"""Runs of GossipFL, DFedAvgM, DisPFL and DFedSAM: workers, resuming, topologies, bytes."""

import numpy as np
import pytest
from by_hand import env, numbers, rounds

from fl import algorithms
from fl.run import runs
from fl.run.events import Listener
from fl.run.rundir import METRICS, read_jsonl
from fl.run.runs import Interrupted, Options

NAMES = ["gossipfl", "dfedavgm", "dispfl", "dfedsam"]
SMALL = "data.train_per_client=24", "data.test_per_client=10", "training.batch_size=8"


@pytest.fixture(scope="module", params=NAMES)
def run(request, tiny, tmp_path_factory):
    path = tmp_path_factory.mktemp(request.param) / "run"
    cfg = tiny(f"algorithm={request.param}", "num_rounds=3", "num_clients=5", *SMALL)
    runs.start(cfg, path, Options(workers=1))
    return cfg, path


def test_two_workers_give_the_same_bytes(run, tmp_path, same_results):
    runs.start(run[0], tmp_path / "run", Options(workers=2))
    same_results(tmp_path / "run", run[1])


class StopAtRound2(Listener):
    def round_started(self, t):
        if t == 2:
            raise KeyboardInterrupt


def test_stopped_and_resumed(run, tmp_path, same_results):
    with pytest.raises(Interrupted):
        runs.start(run[0], tmp_path / "run", Options(1, StopAtRound2()))
    runs.resume(tmp_path / "run", Options(workers=1))
    same_results(tmp_path / "run", run[1])


def test_rounded_messages_resume_too(tiny, tmp_path, same_results):
    """With what they lost."""
    for name in ("gossipfl", "dfedavgm"):
        cfg = tiny(f"algorithm={name}", "num_rounds=3", "messages.values=q8", "training.epochs=0")
        runs.start(cfg, tmp_path / name, Options(workers=1))
        with pytest.raises(Interrupted):
            runs.start(cfg, tmp_path / f"{name}-2", Options(1, StopAtRound2()))
        runs.resume(tmp_path / f"{name}-2", Options(workers=1))
        same_results(tmp_path / f"{name}-2", tmp_path / name)


def test_bytes_and_operations(run):
    cfg, path = run
    lines = read_jsonl(path / METRICS)
    assert lines[-1]["loss"] < lines[0]["loss"]
    for line in lines[1:]:
        real, paper, dense = (line[f"bytes_total{count}"] for count in ("", "_paper", "_dense"))
        share = {"gossipfl": 0.5, "dfedavgm": 0.5, "dispfl": 0.5, "dfedsam": 1.0}[cfg.algorithm]
        assert paper / dense == pytest.approx(share, abs=0.02)  # biases are never masked
        assert 0.7 * paper < real < 1.25 * paper
        uphill = 2 if cfg.algorithm == "dfedsam" else 1
        assert line["flop_round"] == line["flop_dense"] or cfg.algorithm == "dispfl"
        samples = 5 * 24 * uphill
        assert line["flop_dense"] % samples == 0
        assert line["depth"] == 0 and line["parallelism"] == 1
        assert line["density_mean"] == (pytest.approx(0.5, abs=0.01) if cfg.algorithm == "dispfl" else 1)


LINKS = {"ring": 8, "line": 6, "star": 6, "grid": 8, "full": 12, "regular": 8, "random": 8}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", LINKS)
def test_topologies(name, kind):
    algorithm = algorithms.registered()[name]
    world = env(algorithm.Config(), np.ones((4, 5)), kind)
    first, second = rounds(algorithm, world, 2)
    links = 6 if (name, kind) == ("gossipfl", "random") else LINKS[kind]  # one group of three
    dense = second.traffic.up[:, 2]
    assert dense.sum() == second.traffic.down[:, 2].sum() == links * 20
    assert numbers(second.models).shape == (4, 5 if name != "dispfl" else 3)


def test_links_from_a_file(tiny, tmp_path):
    (tmp_path / "edges.txt").write_text("0 1\n1 2\n2 3\n3 0\n")
    graph = ["topology.kind=edges", f"topology.edges={tmp_path / 'edges.txt'}"]
    for name in NAMES:
        cfg = tiny(f"algorithm={name}", "num_rounds=1", "training.epochs=0", *graph)
        summary = runs.start(cfg, tmp_path / name, Options(workers=1))
        assert summary["bytes_total_paper"] == 4 * summary["bytes_busiest_paper"] > 0
