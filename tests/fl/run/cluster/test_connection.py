"""What can be wrong on the way to a cluster. Nothing here starts one."""

import socket
import sys
from types import SimpleNamespace

import pytest

import fl
from fl.errors import ConfigError, Missing
from fl.run.cluster import connection
from fl.run.cluster.connection import ClusterError


@pytest.fixture
def ray(monkeypatch):
    """A Ray that is not connected, and refuses with `ray.wrong`."""

    def init(**given):
        fake.given = given
        if fake.wrong is not None:
            raise fake.wrong

    fake = SimpleNamespace(is_initialized=lambda: False, init=init, wrong=None)
    monkeypatch.setitem(sys.modules, "ray", fake)
    monkeypatch.setattr(connection, "is_there", lambda: True)
    return fake


@pytest.fixture
def listening():
    """The address of somebody who answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize("address", ["here", "here:", ":6379", "ray://here:10001", "here:port", "here:99999"])
def test_addresses_that_are_none(ray, address):
    with pytest.raises(ConfigError, match="expected HOST:PORT"):
        fl.Simulation("demo", executor="ray", address=address)


def test_an_address_without_an_answer(ray):
    with pytest.raises(ClusterError, match="expected a Ray cluster at 127.0.0.1:9, got no answer"):
        connection.connect("127.0.0.1:9")


def test_versions_that_differ(ray, listening):
    """Ray's own message, in one line."""
    ray.wrong = RuntimeError(
        "Version mismatch: The cluster was started with:\n    Ray: 2.9\n    Python: 3.9\n"
    )
    with pytest.raises(ClusterError, match="The cluster was started with: Ray: 2.9 Python: 3.9"):
        connection.connect(listening)


def test_a_cluster_of_its_own_is_of_this_machine_alone(ray, monkeypatch):
    monkeypatch.delenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", raising=False)
    monkeypatch.setenv("RAY_ADDRESS", "192.0.2.7:6379")  # Ray would take it where none is given
    assert connection.connect(None)
    assert ray.given["address"] == "local"
    assert connection.os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] == "0"


def test_a_process_that_is_connected_stays_so(ray):
    ray.is_initialized = lambda: True
    ray.get_runtime_context = lambda: SimpleNamespace(gcs_address="192.0.2.7:6379")
    assert not connection.connect("192.0.2.7:6379") and not connection.connect("auto")
    with pytest.raises(ConfigError, match="expected 192.0.2.7:6379, to which Ray is connected"):
        connection.connect("192.0.2.8:6379")


def test_an_address_is_for_ray_alone():
    with pytest.raises(ConfigError, match="for executor ray only"):
        fl.Simulation("demo", address="127.0.0.1:6379")


def test_machines_train_on_their_cpus(ray):
    with pytest.raises(ConfigError, match="device: expected cpu with the executor ray, got cuda"):
        fl.Simulation("demo", executor="ray", device="cuda")
    with pytest.raises(ConfigError, match="run.at_rest: expected fp32 with the executor ray, got bf16"):
        fl.Simulation("demo", executor="ray", set={"run.at_rest": "bf16"})


def test_without_ray(monkeypatch):
    monkeypatch.setattr(connection, "is_there", lambda: False)
    with pytest.raises(Missing, match=r"pip install 'sparsefl\[ray\]'"):
        fl.Simulation("demo", executor="ray")


def test_machines_are_those_with_cpus(ray):
    up = {"Alive": True, "NodeName": "a", "Resources": {"CPU": 4.0, "GPU": 1.0}}
    others = [up | {"NodeID": "y", "Alive": False}, up | {"NodeID": "z", "Resources": {"GPU": 1.0}}]
    ray.nodes = lambda: [up | {"NodeID": "x"}, *others]
    assert connection.machines() == {"x": ("a", 4)}
