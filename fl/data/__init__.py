"""Data sets, their division among clients, and batches. Nothing is ever downloaded."""

from fl.data.arrays import from_arrays
from fl.data.batches import batches, evaluation_batches
from fl.data.dataset import Dataset, Part
from fl.data.partition import Partition, Samples, partition
from fl.data.sets import load

__all__ = [
    "Dataset",
    "Part",
    "Partition",
    "Samples",
    "batches",
    "evaluation_batches",
    "from_arrays",
    "load",
    "partition",
]
