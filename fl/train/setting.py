"""The setting of a run: configuration, data, network and w0, as workers need them."""

from dataclasses import dataclass, replace
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
    eval_every: int = 1  # rounds from one that tests to the next; the last one does
    num_rounds: int = 1
    places: Places = ONLY_CPU  # where workers compute

    def at(self, t: int) -> "Setting":
        """The setting in round t: nobody has test samples in a round that does not test."""
        tests = (t + 1) % self.eval_every == 0 or t + 1 == self.num_rounds
        return self if tests else self._untested

    @cached_property
    def _untested(self) -> "Setting":
        return replace(self, partition=self.partition.tested_by(np.zeros(self.partition.num_clients, bool)))

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
