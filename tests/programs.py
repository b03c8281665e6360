"""Networks, models and data for tests of programs."""

from collections.abc import Callable
from functools import cache

import numpy as np
import torch
import torch.nn.functional as F
from helpers import randn
from torch import nn

import sparse_engine as se
from sparse_engine.program.batches import Batches, Data
from sparse_engine.program.capture import capture
from sparse_engine.program.cpu.convs import Kernels
from sparse_engine.program.steps import Conv, Graph
from sparsefl.kernels.bitmap import from_mask


class Net(nn.Module):
    """Layers by name, and a function that runs them."""

    def __init__(self, run: Callable, **layers: nn.Module) -> None:
        super().__init__()
        self.run = run
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, x):
        return self.run(self, x)


def _sequence(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers)


def _shared() -> nn.Module:
    """Values that several steps read, x + x, a chain of sums, a ReLU that is read twice."""

    def run(net, x):
        a = net.a(x)
        b = F.relu(net.b(a) + a)
        c = net.c(b)
        d = c + c
        e = F.relu(d) + b
        e = F.relu(e + a) + net.d(e) + e
        return net.fc(e.mean((2, 3)))

    convs = {name: nn.Conv2d(6, 6, 3, padding=1) for name in "bcd"}
    return Net(run, a=nn.Conv2d(3, 6, 3, padding=1), **convs, fc=nn.Linear(6, 4))


def _norms_that_share() -> nn.Module:
    """Gradients that a sum hands to a norm, a dropout, a pool and a ReLU: none may write over them."""

    def run(net, x):
        h = net.a(x)
        h = F.relu(net.n(h)) + h
        h = net.drop(h) + h
        h = net.bn(h) + h
        h = F.max_pool2d(h, 3, 1, 1) + h
        h = F.avg_pool2d(h, 3, 1, 1) + F.relu(h)
        return net.fc(F.relu(h).flatten(1))

    return Net(
        run,
        a=nn.Conv2d(3, 6, 3, padding=1),
        n=nn.GroupNorm(3, 6),
        bn=nn.BatchNorm2d(6),
        drop=nn.Dropout(0.3),
        fc=nn.Linear(6 * 36, 4),
    )


def _flat_by_size() -> nn.Module:
    return Net(lambda net, x: net.fc(net.a(x).view(x.size(0), -1)), a=nn.Conv2d(1, 4, 3), fc=nn.Linear(64, 4))


def _flat_by_reshape() -> nn.Module:
    def run(net, x):
        h = F.max_pool2d(F.relu(net.a(x)), (2, 1), stride=(2, 1))
        return F.log_softmax(net.fc(torch.reshape(h, (h.shape[0], -1))), dim=1)

    return Net(run, a=nn.Conv2d(1, 4, (3, 5), padding=(0, 1)), fc=nn.Linear(4 * 2 * 4, 4))


def _no_training_at_the_front() -> nn.Module:
    """What comes before the first weight has no gradient that anybody needs."""

    def run(net, x):
        x = F.relu(F.avg_pool2d(x, 2) + F.max_pool2d(x, 2))
        return net.fc(F.relu(net.a(x) + x).flatten(1))

    return Net(run, a=nn.Conv2d(2, 2, 3, padding=1), fc=nn.Linear(18, 3))


def _norm_first() -> nn.Module:
    """Parameters of a norm whose input has no gradient."""
    return _sequence(nn.BatchNorm2d(2), nn.GroupNorm(1, 2), nn.Conv2d(2, 5, 3), nn.ReLU(), nn.Flatten())


ODD: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "strides": (
        lambda: _sequence(
            nn.Conv2d(3, 8, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(8, 8, 5, stride=3, padding=2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(8 * 9, 5),
        ),
        (3, 13, 15),
    ),
    "groups": (
        lambda: _sequence(
            nn.Conv2d(3, 8, 1),
            nn.Conv2d(8, 8, 3, padding=1, groups=8),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, 12, 3, stride=2, padding=1, groups=4, bias=False),
            nn.ReLU(),
            nn.Conv2d(12, 12, 3, padding=1, groups=2),
            nn.Flatten(),
            nn.Linear(12 * 16, 5),
        ),
        (3, 7, 8),
    ),
    "dilation": (
        lambda: _sequence(
            nn.Conv2d(2, 6, 3, dilation=2, padding=2),
            nn.ReLU(),
            nn.Conv2d(6, 7, 3, dilation=(1, 3), padding=(0, 1), stride=2),
            nn.Flatten(),
            nn.Linear(42, 4),
        ),
        (2, 8, 8),
    ),
    "kernel 7, unequal padding": (
        lambda: _sequence(
            nn.Conv2d(2, 4, 7, padding=(3, 0)),
            nn.Conv2d(4, 4, (5, 1), padding=(0, 2)),
            nn.ReLU(inplace=True),
            nn.AdaptiveAvgPool2d((2, 3)),
            nn.Flatten(),
            nn.Linear(24, 3, bias=False),
        ),
        (2, 9, 10),
    ),
    "1x1, no norm": (
        lambda: _sequence(
            nn.Conv2d(5, 12, 1),
            nn.ReLU(),
            nn.Conv2d(12, 6, 1, stride=2, bias=False),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(6, 3),
        ),
        (5, 6, 6),
    ),
    "shared values": (_shared, (3, 6, 6)),
    "shared gradients": (_norms_that_share, (3, 6, 6)),
    "batch norm": (
        lambda: _sequence(
            nn.Conv2d(3, 6, 3, padding=1, bias=False),
            nn.BatchNorm2d(6),
            nn.ReLU(),
            nn.Conv2d(6, 6, 3, padding=2),
            nn.BatchNorm2d(6, momentum=None),
            nn.BatchNorm2d(6, affine=False, momentum=0.4),
            nn.BatchNorm2d(6, track_running_stats=False),
            nn.ReLU(),
            nn.AvgPool2d(3, 2, 1),  # a maximum would meet ties where weights are not stored
            nn.Flatten(),
            nn.Linear(6 * 16, 10),
            nn.BatchNorm1d(10, eps=1e-3),
            nn.ReLU(),
            nn.Linear(10, 4),
        ),
        (3, 6, 6),
    ),
    "group norms": (
        lambda: _sequence(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.GroupNorm(4, 8),
            nn.Conv2d(8, 8, 3, padding=1),
            nn.GroupNorm(8, 8, affine=False),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(8 * 25, 8),
            nn.GroupNorm(2, 8),
            nn.ReLU(),
            nn.Linear(8, 4),
        ),
        (3, 5, 5),
    ),
    "dropouts": (
        lambda: _sequence(
            nn.Dropout(0.1),
            nn.Conv2d(1, 6, 3),
            nn.Dropout(0.0),
            nn.ReLU(),
            nn.Dropout(0.4),
            nn.Flatten(),
            nn.Linear(6 * 16, 12),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(12, 4),
        ),
        (1, 6, 6),
    ),
    "pools": (
        lambda: _sequence(
            nn.Conv2d(2, 5, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, 1),
            nn.Conv2d(5, 5, 3, padding=1),
            nn.AvgPool2d(3, 2, 1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d((2, 3)),
            nn.MaxPool2d(2, 1),
            nn.Flatten(),
            nn.Linear(10, 4),
        ),
        (2, 11, 11),
    ),
    "a window of 289": (
        lambda: _sequence(nn.Conv2d(1, 3, 1), nn.MaxPool2d(17, 2), nn.Flatten(), nn.Linear(12, 3)),
        (1, 19, 19),
    ),
    "flat by size": (_flat_by_size, (1, 6, 6)),
    "flat by reshape, log-softmax": (_flat_by_reshape, (1, 6, 6)),
    "images of one pixel": (
        lambda: _sequence(
            nn.Conv2d(7, 9, 3, padding=1), nn.ReLU(), nn.Conv2d(9, 9, 1), nn.Flatten(), nn.Linear(9, 3)
        ),
        (7, 1, 1),
    ),
    "vectors": (
        lambda: _sequence(
            nn.Linear(13, 40), nn.BatchNorm1d(40), nn.ReLU(), nn.Linear(40, 30), nn.ReLU(), nn.Linear(30, 6)
        ),
        (13,),
    ),
    "rows": (lambda: _sequence(nn.Flatten(), nn.Linear(35, 9), nn.ReLU(), nn.Linear(9, 3)), (5, 7)),
    "nothing trained in front": (_no_training_at_the_front, (2, 6, 6)),
    "a norm in front": (_norm_first, (2, 3, 3)),
    "winograd": (
        lambda: _sequence(
            nn.Conv2d(16, 24, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(24, 20, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(20, 16, 3, padding=0),
            nn.Flatten(),
            nn.Linear(16 * 64, 4),
        ),
        (16, 10, 10),
    ),
}
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "resnet18": (lambda: se.models.resnet18(num_classes=10), (3, 8, 8)),
    "resnet18, batch norm": (lambda: se.models.resnet18(num_classes=10, norm="batch"), (3, 8, 8)),
    "vgg11": (lambda: se.models.vgg11(num_classes=10), (3, 32, 32)),
    "alexnet": (lambda: se.models.alexnet(), (3, 16, 16)),
    "lenet5": (lambda: se.models.lenet5(), (1, 28, 28)),
    "small_cnn": (lambda: se.models.small_cnn(in_channels=1), (1, 8, 8)),
    "mlp": (lambda: se.models.mlp(), (64,)),
}


@cache
def made(
    name: str, density: float = 0.4, exempt: tuple[str, ...] = (), seed: int = 0
) -> tuple[Graph, se.Model]:
    """The graph of one of these networks, and a model on a random pattern, which stays as it is."""
    make, sample = (ODD | MODELS)[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = make()
    return captured(net, sample, density, exempt, seed)


def captured(
    net: nn.Module,
    sample: tuple[int, ...],
    density: float = 0.4,
    exempt: tuple[str, ...] = (),
    seed: int = 0,
) -> tuple[Graph, se.Model]:
    """The graph of a network, and a model of it on a random pattern."""
    full = se.compress(net, exempt=exempt)
    graph = capture(net, sample, full.layout)
    if density == 1:
        return graph, full
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(sum(full.layout.segments.sizes), generator=generator) < density
    return graph, full.with_pattern(from_mask(mask, full.layout.segments))


def samples(graph: Graph, n: int = 40, seed: int = 0) -> Data:
    """Random float samples."""
    shape = (n, *graph.sample)
    x = randn(int(np.prod(shape)), seed).view(shape).numpy()
    return Data(x, np.random.default_rng(seed).integers(0, graph.num_classes, n))


def batches(data: Data, size: int, epochs: int = 1, seed: int = 0) -> Batches:
    """All samples in a random order, again in every epoch."""
    rng = np.random.default_rng(seed)
    order = np.concatenate([rng.permutation(len(data.labels)) for _ in range(epochs)])
    return Batches(data, order, size, epochs)


def seeds(graph: Graph) -> tuple[int, ...]:
    return tuple(range(7, 7 + graph.num_dropouts))


KINDS = ("conv", "strided", "1x1", "group", "batch", "relu", "max", "average", "drop", "sum", "twice", "back")


def network(kinds: list[str], channels: int, classes: int) -> nn.Module:
    """Steps of these kinds one after the other. "sum" adds the last value of its shape, "back" the first."""
    layers: dict[str, nn.Module] = {}
    for i, kind in enumerate(kinds):
        made = {
            "conv": lambda: nn.Conv2d(channels, channels, 3, padding=1),
            "strided": lambda: nn.Conv2d(channels, channels, 3, stride=2, padding=1, bias=False),
            "1x1": lambda: nn.Conv2d(channels, channels, 1),
            "group": lambda: nn.GroupNorm(1, channels),
            "batch": lambda: nn.BatchNorm2d(channels),
            "drop": lambda: nn.Dropout(0.3),
        }.get(kind)
        if made is not None:
            layers[f"layer{i}"] = made()

    def run(net, x):
        values = [net.first(x)]
        for i, kind in enumerate(kinds):
            h = values[-1]
            if hasattr(net, f"layer{i}"):
                h = getattr(net, f"layer{i}")(h)
            elif kind == "relu":
                h = F.relu(h)
            elif kind == "max":
                h = F.max_pool2d(h, 3, 1, 1)
            elif kind == "average":
                h = F.avg_pool2d(h, 3, 2, 1)
            elif kind == "twice":
                h = h + h
            else:
                halved = [0, *(j + 1 for j, k in enumerate(kinds[:i]) if k in ("strided", "average"))][-1]
                h = h + values[halved if kind == "back" else max(halved, len(values) - 2)]
            values.append(h)
        return net.fc(values[-1].mean((2, 3)))

    return Net(run, first=nn.Conv2d(2, channels, 3, padding=1), **layers, fc=nn.Linear(channels, classes))


def forced(kernel):
    """Every convolution on that kernel where it is one of 3x3 without stride, on `dense` where it is not."""

    def choose(graph, counts, lanes, bf16=False):
        found = []
        for step in graph.steps:
            if isinstance(step, Conv):
                g = step.geometry
                fits = kernel != "winograd" or (
                    (g.kernel, g.stride, g.dilation) == ((3, 3), 1, (1, 1)) and max(g.padding) <= 2
                )
                each = kernel if fits else "dense"
                found.append(Kernels(each, each, each, "dense" if each == "sparse" else each))
        return tuple(found)

    return choose
