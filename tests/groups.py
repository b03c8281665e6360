"""Groups of clients for tests: layers, patterns and images."""

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from helpers import randn, random_bitmap
from programs import captured
from torch import Tensor, nn

from sparse_engine.program.batches import Batches, Data
from sparsefl.kernels.gather import Moves
from sparsefl.kernels.group import Layer, Network
from sparsefl.kernels.layout import Bitmap
from sparsefl.kernels.sparse_conv import Geometry

LAYERS = {
    "linear": Layer(Geometry(70, 9), bias=2, relu=True),
    "linear, no bias": Layer(Geometry(5, 33)),
    "3x3, padding": Layer(Geometry(3, 2, (3, 3), 1, (1, 1)), (5, 6), bias=0, relu=True),
    "3x3, pool": Layer(Geometry(2, 2, (3, 3)), (7, 6), bias=0, relu=True, pool=(2, 2)),
    "2x3, stride 2, pool without relu": Layer(Geometry(2, 2, (2, 3), 2, (1, 0)), (7, 9), pool=(2, 3)),
    "dilation": Layer(Geometry(2, 2, (3, 2), 1, (0, 2), (2, 3)), (7, 6), bias=1),
}


def network(*layers: Layer) -> Network:
    ends = [layer.bias + layer.geometry.out_channels for layer in layers if layer.bias is not None]
    return Network(layers, max(ends, default=0))


def patterns(net: Network, clients: int, density: float) -> Bitmap:
    return random_bitmap(net.sizes * clients, density, seed=clients)


def images(clients: int, shape: Sequence[int], batch: int, seed: int) -> Tensor:
    return randn(clients * int(torch.Size(shape).numel()) * batch, seed).view(clients, *shape, batch)


def tiny():
    """A LeNet of 8x8 images."""
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(4, 7), nn.ReLU(), nn.Linear(7, 3),
    )  # fmt: skip


class Residual(nn.Module):
    """Two blocks of a ResNet of 8x8 images, the second one at half the size, with norms of a kind."""

    def __init__(self, norm):
        super().__init__()
        self.first, self.n1 = nn.Conv2d(1, 4, 3, padding=1, bias=False), norm(4)
        self.a, self.na = nn.Conv2d(4, 4, 3, padding=1, bias=False), norm(4)
        self.b, self.nb = nn.Conv2d(4, 6, 3, stride=2, padding=1), norm(6)
        self.short = nn.Conv2d(4, 6, 1, stride=2, bias=False)
        self.last = nn.Linear(6, 3)

    def forward(self, x):
        x = F.relu(self.n1(self.first(x)))
        x = F.relu(self.na(self.a(x)) + x)
        x = F.relu(self.nb(self.b(x)) + self.short(x))
        return self.last(F.adaptive_avg_pool2d(x, 1).flatten(1))


def pooled():
    """A gate that no layer's pass opens: ReLU before an average pool, as in small_cnn."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 4, 3, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 3),
    )  # fmt: skip


EXEMPT = {"residual, group norm": ("short*",)}  # weights that stay dense
NETWORKS = {
    "tiny": tiny,
    "pooled": pooled,
    "residual, group norm": lambda: Residual(lambda n: nn.GroupNorm(2, n)),
    "residual, batch norm": lambda: Residual(nn.BatchNorm2d),
}


def tiny_clients(n=3, net="tiny"):
    """A graph, and models with masks and weights of their own."""
    found = []
    for seed in range(n):
        torch.manual_seed(seed)
        found.append(captured(NETWORKS[net](), (1, 8, 8), 0.5, EXEMPT.get(net, ()), seed))
    return found[0][0], [model for _, model in found]


def pictures(graph, n=30, seed=0):
    """Bytes, as data sets have them."""
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 256, (n, *graph.sample)).astype(np.uint8)
    return Data(x, rng.integers(0, 3, n), np.array([120.0], np.float32), np.array([60.0], np.float32))


def shares(data, epochs=2, moved=False):
    """Clients with 14, 9 and 7 samples: the last steps have fewer clients, the last batches are smaller."""
    found = []
    for k, mine in enumerate((range(0, 14), range(14, 23), range(23, 30))):
        rng = np.random.default_rng(k)
        order = np.concatenate([rng.permutation(np.array(mine)) for _ in range(epochs)])
        n = len(order)
        moves = Moves(rng.integers(0, 3, n), rng.integers(0, 3, n), rng.random(n) < 0.5, 1) if moved else None
        found.append(Batches(data, order, 5, epochs, moves))
    return found
