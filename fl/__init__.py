"""Clients and rounds of decentralized federated learning: data, topology, schedule, algorithms, runs.

    result = fl.run("cifar10-small", network=MyNet, data=(x, y), set={"num_rounds": 3})
    for line in fl.Simulation("demo", workers=2, out="runs/mine"): ...
    result = fl.load("runs/mine")           result.metrics, .clients, .summary, .model(k), .report()
    fl.run("demo", out="runs/mine", listeners=[fl.CSV(), MyListener()])         fl.Listener is the base class

They are imported when they are asked for: `sparsefl --help` waits for no torch. `fl.run` is a package too, of
which the loop is a part; it can be called.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fl.run.events import Listener
    from fl.run.loggers import CSV, MLflow, TensorBoard, WandB
    from fl.run.result import Result, load
    from fl.run.simulation import Simulation, run

__all__ = [
    "CSV",
    "Listener",
    "MLflow",
    "Result",
    "Simulation",
    "TensorBoard",
    "WandB",
    "load",
    "run",
]
_OFFERED = {
    "fl.run.events": ("Listener",),
    "fl.run.loggers": ("CSV", "MLflow", "TensorBoard", "WandB"),
    "fl.run.result": ("Result", "load"),
    "fl.run.simulation": ("Simulation",),
}
_HOME = {name: module for module, names in _OFFERED.items() for name in names}
_PACKAGES = ("config", "data", "run")

if not TYPE_CHECKING:  # type checkers see the names above, and no others

    def __getattr__(name: str) -> Any:
        if name in _PACKAGES:
            return importlib.import_module(f"fl.{name}")
        if name not in _HOME:
            raise AttributeError(f"module 'fl' has no attribute {name!r}")
        return getattr(importlib.import_module(_HOME[name]), name)
