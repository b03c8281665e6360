"""Groups of clients for tests: layers, patterns and images."""

from collections.abc import Sequence

import torch
from helpers import randn, random_bitmap
from torch import Tensor

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
