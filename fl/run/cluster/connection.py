"""The way to a Ray cluster, and what can be wrong with it."""

import contextlib
import importlib.util
import logging
import socket
from typing import Any

from fl.errors import ConfigError, Expected, Missing
from sparse_engine.hardware import cores

_ANSWER_S = 5.0  # for which the machine at an address is waited for
_AUTO = "auto"


class ClusterError(Expected, RuntimeError):
    """The machines of a cluster do not fit together, or too many of them are lost."""


def check(address: str | None, told: str = "--address") -> None:
    """Missing: there is no Ray here. ConfigError: `address` is none that can be used."""
    if importlib.util.find_spec("ray") is None:
        raise Missing("expected Ray for --executor ray, got none: pip install 'sparsefl[ray]'")
    if address is None or address == _AUTO:
        return
    host, colon, port = address.rpartition(":")
    if "://" in address or not colon or not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise ConfigError(
            f"{told}: expected HOST:PORT as `ray start --head` prints it, or auto, got {address!r}"
        )


def connect(address: str | None) -> bool:
    """Be part of the cluster at `address`; None: of one of this machine alone, made for it. Whether that has
    to be ended again (`disconnect`): a process that is connected stays so."""
    import ray

    if ray.is_initialized():
        if address not in (None, _AUTO, there := ray.get_runtime_context().gcs_address):
            raise ConfigError(f"--address: expected {there}, to which Ray is connected, got {address}")
        return False
    given: dict[str, Any] = {"num_cpus": cores()} if address is None else {"address": address}
    if address not in (None, _AUTO):
        _check_answers(str(address))
    try:
        ray.init(
            **given,
            include_dashboard=None if address else False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            configure_logging=True,
        )
    except (ConnectionError, RuntimeError, ValueError, OSError) as wrong:
        where = address or "this machine"
        raise ClusterError(f"expected a Ray cluster ({where}), got: {_line(wrong)}") from wrong
    return True


def disconnect() -> None:
    import ray

    with contextlib.suppress(Exception):  # whatever died before us
        ray.shutdown()


def nodes() -> dict[str, dict[str, Any]]:
    """The machines that are up, by their ids: name, cores."""
    import ray

    found = {}
    for one in ray.nodes():
        count = int(one["Resources"].get("CPU", 0))
        if one["Alive"] and count:
            found[one["NodeID"]] = {"name": one["NodeName"], "cores": count}
    return found


def _check_answers(address: str) -> None:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _ANSWER_S).close()
    except OSError as wrong:
        raise ClusterError(
            f"--address: expected a Ray cluster at {address}, got no answer ({wrong.strerror or wrong}): "
            "start one with `ray start --head`"
        ) from None


def _line(wrong: BaseException) -> str:
    return next(iter(str(wrong).strip().splitlines()), type(wrong).__name__)
