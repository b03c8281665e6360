"""A federation's client-rounds as a plain PyTorch loop, dense in float32: test, one epoch of SGD, test.

It does less than a client-round of ours: no averages, no masks, no messages, and one network for all clients,
so that no weights are loaded. Images lie normalised in memory, in the order that the network is fastest with.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from time import perf_counter

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fl.data import Dataset, evaluation_batches
from fl.data.dataset import Part
from fl.train.setting import Setting

FORMATS = (torch.contiguous_format, torch.channels_last)
Forward = Callable[[Tensor], Tensor]


@dataclass
class Loop:
    """Clients one after the other, with the samples that they have in a run of ours."""

    net: nn.Module
    forward: Forward  # `net`, or a compiled one with its parameters
    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    clients: list[tuple[Tensor, Tensor]]  # training and test samples of each
    batch_size: int
    lr: float
    weight_decay: float

    @classmethod
    def of(cls, setting: Setting, layout: torch.memory_format) -> "Loop":
        """With w0 of the run."""
        data, parts, how = setting.data, setting.partition, setting.training
        net = copy.deepcopy(setting.network).to(memory_format=layout)
        train, test = (_normalised(data, part, layout) for part in (data.train, data.test))
        clients = [
            (torch.from_numpy(parts.train.of(k)).long(), torch.from_numpy(parts.test.of(k)).long())
            for k in range(parts.num_clients)
        ]
        return cls(net, net, train, test, clients, how.batch_size, how.lr, how.weight_decay)

    def compiled(self) -> "Loop":
        """The same with torch.compile, a graph per size of batch; it is compiled when it first runs."""
        net = copy.deepcopy(self.net)
        return replace(self, net=net, forward=torch.compile(net, dynamic=False))

    def to(self, device: str) -> "Loop":
        """The same on another device, data set included."""
        net = copy.deepcopy(self.net).to(device)
        train, test = ((x.to(device), y.to(device)) for x, y in (self.train, self.test))
        clients = [(mine.to(device), tests.to(device)) for mine, tests in self.clients]
        return replace(self, net=net, forward=net, train=train, test=test, clients=clients)

    def round(self) -> float:
        """Every client once; the mean loss of its training."""
        return sum(self.client(k) for k in range(len(self.clients))) / len(self.clients)

    def client(self, k: int) -> float:
        """Test, train, test; the mean loss of the training."""
        mine, tests = self.clients[k]
        self._accuracy(tests)
        optimizer = torch.optim.SGD(self.net.parameters(), lr=self.lr, weight_decay=self.weight_decay)
        self.net.train()
        total = 0.0
        for batch in mine[torch.randperm(len(mine))].split(self.batch_size):
            optimizer.zero_grad()
            loss = F.cross_entropy(self.forward(self.train[0][batch]), self.train[1][batch])
            loss.backward()
            optimizer.step()
            total += len(batch) * loss.item()
        self._accuracy(tests)
        return total / len(mine)

    def _accuracy(self, samples: Tensor) -> float:
        self.net.eval()
        x, y = self.test
        with torch.no_grad():
            right = (self.forward(x[samples]).argmax(1) == y[samples]).sum()
        return right.item() / len(samples)


def fastest(setting: Setting) -> Loop:
    """The loop in the faster of torch's two layouts, by the better of two rounds each."""
    if not setting.data.is_image or not any(isinstance(m, nn.Conv2d) for m in setting.network.modules()):
        return Loop.of(setting, FORMATS[0])
    times = {layout: min(_seconds(setting, layout)) for layout in FORMATS}
    return Loop.of(setting, min(times, key=lambda layout: times[layout]))


def _seconds(setting: Setting, layout: torch.memory_format, clients: int = 4) -> list[float]:
    loop, found = Loop.of(setting, layout), []
    for _ in range(3):
        began = perf_counter()
        for k in range(min(clients, len(loop.clients))):
            loop.client(k)
        found.append(perf_counter() - began)
    return found[1:]


def _normalised(data: Dataset, part: Part, layout: torch.memory_format) -> tuple[Tensor, Tensor]:
    x, y = next(evaluation_batches(replace(data, test=part), np.arange(len(part)), len(part)))
    return (x.contiguous(memory_format=layout) if data.is_image else x), y
