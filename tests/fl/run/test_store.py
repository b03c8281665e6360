"""Where clients are kept changes no byte of a run, nor does dropping models as a round goes on."""

import json

import pytest
from messages import same

from fl import algorithms
from fl.algorithms import da_dpfl
from fl.clients.memory import InMemory
from fl.clients.store import Store
from fl.errors import ConfigError
from fl.run import models, populations, runs
from fl.run.keys import TIMING
from fl.run.simulation import Simulation


class Objects:
    """Clients are a tuple of objects in memory."""

    nbytes = 0

    def __call__(self, *given):
        return InMemory(*given)


@pytest.mark.parametrize("name", algorithms.shipped())
def test_every_algorithm_gives_the_same_bytes(name, tiny, tmp_path, same_results, monkeypatch):
    changes = [f"algorithm={name}", "num_rounds=3"]
    runs.start(tiny(*changes), tmp_path / "memory")
    monkeypatch.setattr(populations, "LARGE", 0)
    runs.start(tiny(*changes, "run.store=files"), tmp_path / "files and spent")
    with monkeypatch.context() as patch:
        patch.setattr(populations.Populations, "store", lambda run, folder: Objects())
        runs.start(tiny(*changes), tmp_path / "objects")
    same_results(tmp_path / "memory", tmp_path / "files and spent")
    ours, theirs = (models.read(tmp_path / name).clients for name in ("memory", "objects"))
    assert all(same(a, b) for a, b in zip(ours, theirs, strict=True))
    lines = [(tmp_path / name / "metrics.jsonl").read_text().splitlines() for name in ("memory", "objects")]
    assert timeless(lines[0]) == timeless(lines[1])


def timeless(lines):
    return [{k: v for k, v in json.loads(line).items() if k not in TIMING} for line in lines]


@pytest.mark.parametrize("fails_in", [0, 2])
def test_a_round_that_fails_while_it_spends_is_run_again(fails_in, tiny, tmp_path, same_results, monkeypatch):
    runs.start(tiny(), tmp_path / "whole")
    monkeypatch.setattr(populations, "LARGE", 0)
    plain, calls = da_dpfl.finish, []

    def finish(k, given, done, *, t, cfg, messages):
        calls.append(t)
        if t == fails_in and calls.count(t) == 3:
            raise KeyboardInterrupt
        return plain(k, given, done, t=t, cfg=cfg, messages=messages)

    monkeypatch.setattr(da_dpfl, "finish", finish)
    simulation = Simulation(tiny(), out=tmp_path / "failed", workers=1)
    with pytest.raises(KeyboardInterrupt):
        simulation.run()
    simulation.run()
    same_results(tmp_path / "whole", tmp_path / "failed")


def test_a_sample_of_clients_is_tested(tiny):
    whole, part = (Simulation(tiny(*c)) for c in ((), ("run.eval_clients=1",)))
    ours, theirs = whole.run(), part.run()
    tested = [line["accuracy"] is not None for line in theirs.clients][:4]
    assert tested.count(True) == 1
    same = ("loss", "density_mean", "bytes_total", "flop_round")
    assert [[line[key] for key in same] for line in ours.metrics] == [
        [line[key] for key in same] for line in theirs.metrics
    ]


@pytest.mark.parametrize("path", ["program", "layers"])
def test_some_rounds_test_and_all_train_alike(tiny, path):
    """Test sets are smaller than batches: then the sums are rounded alike, too."""
    change = f"training.path={path}"
    ours = Simulation(tiny(change)).run().metrics
    theirs = Simulation(tiny(change, "run.eval_every=2")).run().metrics
    assert [line["accuracy_mean"] is not None for line in theirs] == [False, True, False, True, True]
    for a, b in zip(ours, theirs, strict=True):
        assert all(a[key] == b[key] for key in ("loss", "density_mean", "bytes_total", "votes", "flop_round"))
        assert b["accuracy_mean"] in (None, a["accuracy_mean"])


@pytest.mark.parametrize("name", ["fedavg", "feddst", "ditto"])
def test_servers_keep_accuracies_and_test_in_every_round(tiny, name):
    with pytest.raises(ConfigError, match=r"run.eval_every: expected 1 with an algorithm with a server"):
        tiny(f"algorithm={name}", "run.eval_every=2")


def test_one_version_and_a_little_is_there(tiny, tmp_path, monkeypatch):
    """Clients wait for all that come before them: last models are soon not needed."""
    monkeypatch.setattr(populations, "LARGE", 0)
    keep, held = Store.keep, []

    def counted(store, record):
        slot = keep(store, record)
        held.append(int((store._holders > 0).sum()))
        return slot

    monkeypatch.setattr(Store, "keep", counted)
    changes = ["num_clients=200", "num_rounds=2", "model.name=mlp", "model.hidden=[8]", "topology.degree=5"]
    more = ["da_dpfl.max_wait=5", "data.train_per_client=8", "data.test_per_client=4", "data.disjoint=false"]
    runs.start(tiny(*changes, *more), tmp_path / "run", runs.Options(workers=1))
    assert len(held) == 600 and 200 <= max(held[200:]) <= 240
