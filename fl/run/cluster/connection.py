"""The way to a Ray cluster, and what can be wrong with it."""

import contextlib
import importlib.util
import ipaddress
import logging
import os
import socket
from typing import Any, NamedTuple

from fl.errors import ConfigError, Expected, Missing
from sparse_engine.hardware import cores

AUTO = "auto"  # the cluster that this machine is part of
_ANSWER_S = 5.0  # for which the machine at an address is waited for


class ClusterError(Expected, RuntimeError):
    """The machines of a cluster do not fit together, or too many of them are lost."""


class Machine(NamedTuple):
    """One that is up: its name, and how many CPUs Ray may use there."""

    name: str
    cpus: int


def check(address: str | None, told: str = "--address") -> None:
    """Missing: there is no Ray here. ConfigError: `address` is none that can be used."""
    if not is_there():
        raise Missing("expected Ray for the executor ray, got none: pip install 'sparsefl[ray]'")
    if address is None or address == AUTO:
        return
    host, _, port = address.rpartition(":")
    if "://" in address or not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise ConfigError(
            f"{told}: expected HOST:PORT as `ray start --head` prints it, or {AUTO}, got {address!r}"
        )


def is_there() -> bool:
    """Whether Ray is installed. It is not imported: that takes a second."""
    return importlib.util.find_spec("ray") is not None


def connect(address: str | None) -> bool:
    """Be part of the cluster at `address`; None: of one of this machine alone, made for it on loopback.
    Whether that has to be ended again (`disconnect`): a process that was connected before stays so."""
    if address is None or _is_loopback(address):
        # Read when Ray is imported: stay on 127.0.0.1, or it would listen on the address of a network card.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    import ray

    if ray.is_initialized():
        there = ray.get_runtime_context().gcs_address
        if address not in (None, AUTO, there):
            raise ConfigError(f"--address: expected {there}, to which Ray is connected, got {address}")
        return False
    given: dict[str, Any] = {"address": address}
    if address is None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        given = {"address": "local", "num_cpus": cores(), "include_dashboard": False}
        given["_system_config"] = {"worker_niceness": 0}  # Ray's 15: behind all else on the machine
    elif address != AUTO:
        _check_answers(address)
    try:
        ray.init(**given, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError, OSError) as wrong:
        raise ClusterError(
            f"expected a Ray cluster ({address or 'this machine'}), got: {_said(wrong)}"
        ) from wrong
    return True


def disconnect() -> None:
    import ray

    with contextlib.suppress(Exception):  # whatever died before us
        ray.shutdown()


def machines() -> dict[str, Machine]:
    """Those that are up and have CPUs, by Ray's ids."""
    import ray

    found = {}
    for one in ray.nodes():
        cpus = int(one["Resources"].get("CPU", 0))
        if one["Alive"] and cpus:
            found[one["NodeID"]] = Machine(one["NodeName"], cpus)
    return found


def _check_answers(address: str) -> None:
    """Ray itself would try for a minute."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _ANSWER_S).close()
    except OSError as wrong:
        raise ClusterError(
            f"--address: expected a Ray cluster at {address}, got no answer ({wrong.strerror or wrong}): "
            "start one with `ray start --head`"
        ) from None


def _is_loopback(address: str) -> bool:
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _said(wrong: BaseException) -> str:
    """Ray's message in one line: that of other versions has six."""
    return " ".join(str(wrong).split())[:400] or type(wrong).__name__
