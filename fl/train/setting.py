"""The setting of a run: configuration, data, network and w0, as workers need them."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from torch import nn

import sparse_engine as se
from fl import config
from fl.data import Dataset, Partition
from fl.train import path, places
from fl.train.cost import Cost, Costs
from fl.train.path import Path
from fl.train.places import ONLY_CPU, Places


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What all workers of a run share, and none changes."""

    training: config.Training
    exempt: tuple[str, ...]
    seed: int
    data: Dataset  # its `augment` says whether images are cropped and mirrored
    partition: Partition
    network: nn.Module  # a dense one with w0: workers copy it
    initial: se.Model  # w0, everything stored
    cost: Cost
    places: Places = ONLY_CPU  # where workers compute

    @property
    def costs(self) -> Costs:
        """Operations of clients' turns."""
        return Costs(self.cost, np.diff(self.partition.train.indptr).tolist())

    @cached_property
    def path(self) -> Path:
        """How clients are trained, and why so."""
        found = path.choose(self.training, self.network, self.data.shape, self.initial.layout)
        places.check(found, self.places)
        return found._replace(where=places.told(self.places))
