"""What is measured of every round, one file per meter."""

from fl.run.meters.base import Meter as Meter
from fl.run.meters.energy import Energy
from fl.run.meters.memory import Memory
from fl.run.meters.wall import Wall

METERS: tuple[type[Meter], ...] = (Energy, Wall, Memory)  # in the order of their keys in a line


def usual() -> list[Meter]:
    """Those of a run that measures no joules."""
    return [Wall(), Memory()]
