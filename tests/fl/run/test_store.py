"""Where clients are kept changes no byte of a run, nor does dropping models as a round goes on."""

import pytest

from fl import algorithms
from fl.algorithms import da_dpfl
from fl.clients.memory import InMemory
from fl.run import populations, runs
from fl.run.simulation import Simulation


@pytest.fixture
def as_before(monkeypatch):
    """A function: from now on clients are a tuple of objects in memory."""

    def set_up():
        monkeypatch.setattr(populations.Populations, "store", lambda run, folder: Objects())

    class Objects:
        nbytes = 0

        def __call__(self, *given):
            return InMemory(*given)

    return set_up


@pytest.mark.parametrize("name", algorithms.shipped())
def test_every_algorithm_gives_the_same_bytes(name, tiny, tmp_path, same_results, as_before, monkeypatch):
    changes = [f"algorithm={name}", "num_rounds=3"]
    runs.start(tiny(*changes), tmp_path / "memory")
    monkeypatch.setattr(populations, "LARGE", 0)
    runs.start(tiny(*changes, "run.store=files"), tmp_path / "files and spent")
    as_before()
    runs.start(tiny(*changes), tmp_path / "objects")
    for other in ("files and spent", "objects"):
        same_results(tmp_path / "memory", tmp_path / other)


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
