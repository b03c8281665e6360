"""The executor ray on two nodes of loopback: the bytes of the local one, whoever is killed."""

import os
import signal

import pytest

import fl
from fl.run.cluster import executor as clusters
from fl.run.cluster import wave
from fl.run.cluster.connection import ClusterError
from fl.run.events import Listener
from fl.run.loop import Options
from fl.run.runs import resume, start

os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # Ray's way to stay on loopback
ray = pytest.importorskip("ray", reason="needs Ray: pip install 'sparsefl[ray]'")
pytestmark = pytest.mark.xdist_group("ray")

QUICK = {  # of Ray: dead nodes are noticed in seconds, workers do not yield to everything else on the machine
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 1000,
    "health_check_failure_threshold": 5,
    "worker_niceness": 0,
}


class Nodes:
    """Two nodes of one CPU each beside a head of none, and this process connected to them."""

    def __init__(self):
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 0, "include_dashboard": False, "_system_config": QUICK}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self.address = self._cluster.address
        self.two()
        ray.init(address=self.address, log_to_driver=False, logging_level="ERROR")

    def two(self):
        """Start what is missing."""
        while len(self._cluster.worker_nodes) < 2:
            self._cluster.add_node(num_cpus=1)

    def kill(self, place, keeper):
        """All of a machine at once: Ray lets its processes live on for seconds. It never comes back."""
        (node,) = (x for x in self._cluster.worker_nodes if x.node_id == place.machine)
        for process in (place.actor, keeper):
            kill(process)
        self._cluster.remove_node(node, allow_graceful=False)

    def close(self):
        ray.shutdown()
        self._cluster.shutdown()


@pytest.fixture(scope="module")
def started():
    nodes = Nodes()
    yield nodes
    nodes.close()


@pytest.fixture
def nodes(started):
    started.two()
    return started


@pytest.fixture(scope="module")
def local(tiny, tmp_path_factory):
    """A function: the run of an algorithm by the local executor."""
    made = {}

    def run(algorithm="da_dpfl"):
        if algorithm not in made:
            made[algorithm] = tmp_path_factory.mktemp("local") / algorithm
            start(tiny(f"algorithm={algorithm}"), made[algorithm], Options(workers=1))
        return made[algorithm]

    return run


@pytest.fixture
def pools(monkeypatch):
    """The clusters that runs make."""
    made = []
    make = clusters.Cluster.__init__
    monkeypatch.setattr(
        clusters.Cluster, "__init__", lambda self, *given: (make(self, *given), made.append(self))[0]
    )
    return made


def kill(actor):
    facts = ray.get(actor.facts.remote())
    os.kill(facts["pid"], signal.SIGKILL)


class At(Listener):
    """Does something once, when the first clients of a round are done and others are not; hears notes."""

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


def options(nodes, listener=None):
    return Options(workers=1, executor="ray", address=nodes.address, listener=listener or Listener())


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
    start(cfg, tmp_path / "ray", options(nodes, seen))
    same_results(tmp_path / "ray", local(algorithm))
    assert [len(facts) for facts in seen.facts] == [2] * 5
    middle, last = seen.facts[2], seen.facts[-1]
    assert all(fact["most_batches"] <= wave.AHEAD for fact in last)
    if algorithm == "da_dpfl":
        assert all(fact["own"] > 0 for fact in last)  # both have clients
        assert sum(fact["blobs"] for fact in last) >= sum(fact["own"] for fact in last)
    if algorithm == "dfedavgm":
        # each of 4 clients takes two of the others: a machine with two clients of its own needs both models
        # of the other machine, or fewer, once per round however many clients take them; nothing piles up
        for before, after in zip(seen.facts, seen.facts[1:], strict=False):
            assert all(0 < a["fetched"] - b["fetched"] <= 3 for a, b in zip(after, before, strict=True))
        assert sum(fact["own"] for fact in last) <= sum(fact["own"] for fact in middle)


def test_models_are_there_after_a_run(nodes, tiny_file, monkeypatch, pools):
    """Without a directory: they come here when the cluster is left. Memory for others' models is short."""
    monkeypatch.setattr(clusters, "SEEN", 1)
    changes, seen = {"num_rounds": 2, "algorithm": "dispfl"}, Holds(pools)
    given = {"set": changes, "workers": 1}
    far = fl.run(tiny_file, executor="ray", address=nodes.address, listeners=[seen], **given)
    near = fl.run(tiny_file, **given)
    for k in range(4):
        ours, theirs = far.model(k), near.model(k)
        for name, tensor in theirs.tensors().items():
            assert tensor.numpy().tobytes() == ours.tensors()[name].numpy().tobytes(), name
    largest = max(sum(x.nbytes for x in near.model(k).tensors().values()) for k in range(4))
    assert all(0 < fact["most_seen"] < 2 * largest for fact in seen.facts[-1])  # one, while the next comes


def test_killed_processes_are_started_anew(nodes, tiny, local, tmp_path, same_results, pools):
    """A worker in the middle of round 1, a keeper in that of round 3: each is noticed, nothing is lost."""

    def keeper():
        return next(iter(pools[0].places.keepers().values()))

    listener = At(round_1=lambda: kill(pools[0].places.all[0].actor), round_3=lambda: kill(keeper()))
    start(tiny(), tmp_path / "ray", options(nodes, listener))
    same_results(tmp_path / "ray", local())
    assert sum("died: it is started anew" in note for note in listener.notes) == 2


def test_a_machine_that_is_lost(nodes, tiny, local, tmp_path, same_results, pools):
    """For good, in the middle of round 2: the other one goes on with its clients."""

    def lose():
        places = pools[0].places
        first, second = places.all
        nodes.kill(second, first.keeper)  # copies of a machine's models are on the next one

    listener = At(round_2=lose)
    start(tiny(), tmp_path / "ray", options(nodes, listener))
    same_results(tmp_path / "ray", local())
    assert any("others go on with its clients" in note for note in listener.notes)


def test_models_that_are_lost(nodes, tiny, local, tmp_path, same_results, pools):
    """Everything dies in the middle of round 2: a message, and the run is resumed where it was."""

    def lose():
        places = pools[0].places
        for actor in (*(place.actor for place in places.all), *(place.keeper for place in places.all)):
            kill(actor)

    with pytest.raises(ClusterError, match=r"no copy elsewhere; nothing is lost of .*: go on with --resume"):
        start(tiny(), tmp_path / "ray", options(nodes, At(round_2=lose)))
    listener = At()
    resume(tmp_path / "ray", Options(workers=1, listener=listener))
    same_results(tmp_path / "ray", local())


def test_an_error_of_a_client_is_raised_here(nodes, tiny, tmp_path):
    with pytest.raises(fl.errors.Diverged, match=r"client \d, round"):
        start(tiny("training.lr=1e30"), tmp_path / "ray", options(nodes))
