"""Clients and rounds of decentralized federated learning: data, topology, schedule, algorithms, runs.

    result = fl.run("cifar10-small", network=MyNet, data=(x, y), set={"num_rounds": 3})
    for line in fl.Simulation("demo", workers=2, out="runs/mine"): ...
    result = fl.load("runs/mine")           result.metrics, .clients, .summary, .model(k), .report()

They are imported when they are asked for: `sparsefl --help` waits for no torch. `fl.run` is a package too, of
which the loop is a part; it can be called.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fl.run.result import Result, load
    from fl.run.simulation import Simulation

__all__ = ["Result", "Simulation", "load", "run"]
_OFFERED = {"Result": "fl.run.result", "Simulation": "fl.run.simulation", "load": "fl.run.result"}
_PACKAGES = ("config", "data", "run")


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return importlib.import_module(f"fl.{name}")
    if name not in _OFFERED:
        raise AttributeError(f"module 'fl' has no attribute {name!r}")
    return getattr(importlib.import_module(_OFFERED[name]), name)
