"""What is measured of every round, one file per meter."""

from fl.run.meters.base import Meter as Meter
from fl.run.meters.wall import Wall

METERS: tuple[type[Meter], ...] = (Wall,)  # in the order of their keys in a line


def usual() -> list[Meter]:
    """One of each that there is."""
    return [make() for make in METERS]
