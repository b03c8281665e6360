"""Data sets, their division among clients, and batches. Nothing is ever downloaded."""

from fl.data.arrays import from_arrays
from fl.data.batches import batches, evaluation_batches
from fl.data.dataset import Dataset, Part, standardised
from fl.data.lists import partition_by_groups, partition_by_lists
from fl.data.partition import partition
from fl.data.samples import Partition, Samples
from fl.data.sets import adjusted, as_dataset, load
from fl.data.sources import from_hf, from_torch

__all__ = [
    "Dataset",
    "Part",
    "Partition",
    "Samples",
    "adjusted",
    "as_dataset",
    "batches",
    "evaluation_batches",
    "from_arrays",
    "from_hf",
    "from_torch",
    "load",
    "partition",
    "partition_by_groups",
    "partition_by_lists",
    "standardised",
]
