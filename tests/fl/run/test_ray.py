"""The executor ray on two nodes of loopback: the same bytes as local ones, whoever is killed."""

import os
import signal
import subprocess
import sys

import pytest

import fl
from fl.errors import ConfigError, Missing
from fl.run.cluster import connection
from fl.run.cluster import executor as cluster_executor
from fl.run.cluster.connection import ClusterError
from fl.run.events import Listener
from fl.run.loop import Options
from fl.run.runs import resume, start

ray = pytest.importorskip("ray", reason="needs Ray: pip install 'sparsefl[ray]'")


@pytest.fixture(scope="module")
def nodes():
    """Two nodes of one CPU each, and this process connected to them."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    cluster.add_node(num_cpus=1)
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture(scope="module")
def local(tiny, tmp_path_factory):
    """A function: the run of an algorithm by the local executor."""
    made = {}

    def run(algorithm):
        if algorithm not in made:
            made[algorithm] = tmp_path_factory.mktemp("local") / algorithm
            start(tiny(f"algorithm={algorithm}"), made[algorithm], Options(workers=1))
        return made[algorithm]

    return run


@pytest.fixture
def pools(monkeypatch):
    """The clusters that runs make."""
    made = []

    class Seen(cluster_executor.Cluster):
        def __init__(self, *given):
            super().__init__(*given)
            made.append(self)

    monkeypatch.setattr(cluster_executor, "Cluster", Seen)
    return made


class At(Listener):
    """Does something once, when the first clients of a round are done and others are not."""

    def __init__(self, **actions):
        self.actions = {int(t.removeprefix("round_")): action for t, action in actions.items()}
        self.notes, self.t = [], -1

    def round_started(self, t):
        self.t = t

    def client_finished(self, k):
        if self.t in self.actions:
            self.actions.pop(self.t)()

    def note(self, text):
        self.notes.append(text)


def on_ray(cfg, path, listener=None, **given):
    start(cfg, path, Options(workers=1, executor="ray", listener=listener or Listener(), **given))
    return path


class Holds(Listener):
    """What machines hold after every round."""

    def __init__(self, pools):
        self.pools, self.facts = pools, []

    def round_finished(self, record):
        self.facts.append(self.pools[0].facts())


@pytest.mark.parametrize("algorithm", ["da_dpfl", "fedavg", "dfedavgm"])
def test_same_bytes_as_local(nodes, tiny, local, tmp_path, same_results, pools, algorithm):
    seen = Holds(pools)
    cfg = tiny(f"algorithm={algorithm}")
    same_results(on_ray(cfg, tmp_path / "ray", seen, address=nodes.address), local(algorithm))
    assert [len(facts) for facts in seen.facts] == [2] * 5
    if algorithm == "da_dpfl":
        assert all(fact["own"] > 0 for fact in seen.facts[-1])  # both have clients
        # after a round, what the one before it needed is forgotten: nothing piles up
        assert sum(fact["own"] for fact in seen.facts[4]) <= sum(fact["own"] for fact in seen.facts[2]) + 4
        last = seen.facts[4]
        assert sum(fact["blobs"] for fact in last) >= sum(fact["own"] for fact in last)


def test_models_are_there_after_a_run(nodes, tiny_file):
    """Without a directory: they come here when the cluster is left."""
    changes = {"num_rounds": 2}
    far = fl.run(tiny_file, set=changes, executor="ray", address=nodes.address, workers=1)
    near = fl.run(tiny_file, set=changes, workers=1)
    for k in range(4):
        ours, theirs = far.model(k), near.model(k)
        for name, tensor in theirs.tensors().items():
            assert tensor.numpy().tobytes() == ours.tensors()[name].numpy().tobytes(), name


def test_killed_processes_are_started_anew(nodes, tiny, local, tmp_path, same_results, pools):
    """A worker in the middle of round 1, a keeper in that of round 3: each is noticed, nothing is lost."""
    killed = []

    def kill(what):
        killed.append(pools[0].facts()[0][what])
        os.kill(killed[-1], signal.SIGKILL)

    listener = At(round_1=lambda: kill("pid"), round_3=lambda: kill("keeper_pid"))
    on_ray(tiny(), tmp_path / "ray", listener, address=nodes.address)
    same_results(tmp_path / "ray", local("da_dpfl"))
    assert len(set(killed)) == 2
    assert [note for note in listener.notes if "died: it is started anew" in note]


def test_other_numerics_are_refused(nodes, tiny, tmp_path, monkeypatch):
    import sparse_engine as se

    here = se.numerics()
    monkeypatch.setattr(se, "numerics", lambda: here | {"numpy": "1.0"})
    with pytest.raises(ClusterError, match=r"compute alike, got on .*numpy .* instead of 1\.0"):
        on_ray(tiny(), tmp_path / "ray", address=nodes.address)


def test_an_error_of_a_client_is_raised_here(nodes, tiny, tmp_path):
    with pytest.raises(fl.errors.Diverged, match=r"client \d, round"):
        on_ray(tiny("training.lr=1e30"), tmp_path / "ray", address=nodes.address)


FAULTS = '''
import os
import signal
import sys
from pathlib import Path
import ray
from ray.cluster_utils import Cluster
from fl import config
from fl.run.cluster import executor
from fl.run.events import Listener
from fl.run.loop import Options
from fl.run.runs import start

file, out, left = sys.argv[1:]
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
first = cluster.add_node(num_cpus=1)
second = cluster.add_node(num_cpus=1)

pools = []
make = executor.Cluster.__init__
executor.Cluster.__init__ = lambda self, *given: (make(self, *given), pools.append(self))[0]

def kill(*nodes):
    """Everything on these machines at once: Ray lets processes of a machine live on for seconds."""
    places = pools[0].places
    ids = [node.node_id for node in nodes]
    actors = [place.actor for place in places.all if place.machine in ids]
    pids = [ray.get(actor.facts.remote())["pid"] for actor in actors]
    pids += [ray.get(places._keepers[id].facts.remote())["keeper_pid"] for id in ids]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    for node in nodes:
        cluster.remove_node(node, allow_graceful=False)

class Kill(Listener):
    t = -1
    def round_started(self, t):
        self.t = t
    def client_finished(self, k):
        if self.t == 2:
            self.t = -1
            kill(*([second] if int(left) else [first, second]))
    def note(self, text):
        print(text, flush=True)

options = Options(workers=1, executor="ray", address=cluster.address, listener=Kill())
try:
    start(config.load(Path(file), ()), Path(out), options)
except Exception as wrong:
    print(type(wrong).__name__, wrong, flush=True)
finally:
    cluster.shutdown()
'''


@pytest.mark.parametrize("left", [1, 0])
def test_machines_that_are_lost(tiny_file, tiny, local, tmp_path, same_results, left):
    """In the middle of round 2, with another machine left or none: the run goes on, or is resumed here."""
    (tmp_path / "faults.py").write_text(FAULTS)
    command = [sys.executable, "faults.py", str(tiny_file), str(tmp_path / "ray"), str(left)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    if left:
        assert "others go on with its clients" in done.stdout, done
    else:
        assert "ClusterError expected machines" in done.stdout and "--resume" in done.stdout, done
        resume(tmp_path / "ray", Options(workers=1))
    same_results(tmp_path / "ray", local("da_dpfl"))


@pytest.mark.parametrize("address", ["here", "here:", ":6379", "ray://here:10001", "here:port", "here:99999"])
def test_addresses_that_are_none(address):
    with pytest.raises(ConfigError, match="expected HOST:PORT"):
        fl.Simulation("demo", executor="ray", address=address)


def test_an_address_without_an_answer(tiny, tmp_path):
    if ray.is_initialized():
        ray.shutdown()
    with pytest.raises(ClusterError, match="got no answer"):
        on_ray(tiny(), tmp_path / "ray", address="127.0.0.1:9")


def test_an_address_is_for_ray_alone():
    with pytest.raises(ConfigError, match="for executor ray only"):
        fl.Simulation("demo", address="127.0.0.1:6379")


def test_without_ray(monkeypatch):
    monkeypatch.setattr(connection.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(Missing, match=r"pip install 'sparsefl\[ray\]'"):
        fl.Simulation("demo", executor="ray")
