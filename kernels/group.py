"""A group: G clients of one network, whose layers run in one launch each.

    bitmap     the clients' patterns, one after the other: segment g L + l is weight l of client g
    arena      float32: the packed values of client 0, 1, ..., then each client's `rest` (biases)
    images     [G, channels, height, width, B]; B is one of BATCHES, and a smaller batch leaves lanes empty

A layer is a convolution (a linear layer: of a 1x1 kernel on a 1x1 image), its bias, ReLU and max pool:

    z = conv(x) + bias,   y = max of z over each pool window, relu of it
    gate = the window's place that was the maximum, in rows; SHUT where relu cut it off

The gradient of z is kept, not that of y: the pass that computes dy writes it through `gate`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from sparsefl.kernels.layout import Bitmap, Derived
from sparsefl.kernels.sparse_conv.conv import Geometry

BATCHES = (16, 32, 64, 128)
SHUT = 255
CHUNK = 2048  # numbers of the arena that a step takes at a time


def lanes_for(batch: int) -> int:
    """Return the B that a batch runs on."""
    if not 1 <= batch <= BATCHES[-1]:
        raise ValueError(f"expected a batch of 1 to {BATCHES[-1]} samples, got {batch}")
    return next(b for b in BATCHES if b >= batch)


@dataclass(frozen=True)
class Layer:
    """One layer; `size` is that of x's images, `bias` where it begins in `rest`."""

    geometry: Geometry
    size: tuple[int, int] = (1, 1)
    bias: int | None = None
    relu: bool = False
    pool: tuple[int, int] = (1, 1)  # windows side by side

    def __post_init__(self) -> None:
        if self.pool[0] * self.pool[1] >= SHUT:
            raise ValueError(f"expected pool windows of fewer than {SHUT} places, got {self.pool}")
        if min(self.pooled) < 1:
            raise ValueError(f"expected a pool window that fits into {self.out}, got {self.pool}")

    @cached_property
    def out(self) -> tuple[int, int]:
        """Size of z."""
        return self.geometry.output_size(*self.size)

    @cached_property
    def pooled(self) -> tuple[int, int]:
        """Size of y."""
        return self.out[0] // self.pool[0], self.out[1] // self.pool[1]

    @property
    def gated(self) -> bool:
        """Does a gradient pass a gate between y and z?"""
        return self.relu or self.pool != (1, 1)

    @property
    def linear(self) -> bool:
        """Has it one pixel in and one out?"""
        return self.size == self.out == self.geometry.kernel == (1, 1)

    @property
    def columns(self) -> int:
        """Weights of an output channel."""
        return self.geometry.in_channels * self.geometry.taps

    @property
    def x_shape(self) -> tuple[int, int, int]:
        return (self.geometry.in_channels, *self.size)

    @property
    def z_shape(self) -> tuple[int, int, int]:
        return (self.geometry.out_channels, *self.out)

    @property
    def y_shape(self) -> tuple[int, int, int]:
        return (self.geometry.out_channels, *self.pooled)


@dataclass(frozen=True)
class Network:
    """Layers in the order of their weights' segments, and how many numbers `rest` has."""

    layers: tuple[Layer, ...]
    num_rest: int = 0
    derived: Derived = field(default_factory=Derived, repr=False, compare=False)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        return tuple(layer.geometry.shape.numel() for layer in self.layers)

    @cached_property
    def first_rows(self) -> tuple[int, ...]:
        """Of each layer, in a client's list of output channels; and the end."""
        return _running(layer.geometry.out_channels for layer in self.layers)

    @cached_property
    def first_columns(self) -> tuple[int, ...]:
        """Of each layer, in a client's list of input channels; and the end."""
        return _running(layer.geometry.in_channels for layer in self.layers)


class Index(NamedTuple):
    """How passes visit the weights of a group. Numbers of pixels: channel * height * width.

    entries   int32 [arena, 4]: pixel of x, pixel of z, row << 16 | column of the tap (-1: a bias), 0
    rows      int32 [G * rows + 1]: first value of every output channel
    turned    int32 [values, 4]: entries by input channel; the last number is the value's place in the arena
    columns   int32 [G * columns + 1]: first of `turned` of every input channel
    """

    entries: Tensor
    rows: Tensor
    turned: Tensor
    columns: Tensor


@dataclass(frozen=True, eq=False)
class Group:
    """A network, the patterns of its clients, and their index."""

    network: Network
    clients: int
    bitmap: Bitmap
    index: Index

    @property
    def length(self) -> int:
        """Of the arena."""
        return self.bitmap.nnz + self.clients * self.network.num_rest


def runs(
    bitmap: Bitmap, clients: int, num_rest: int, trained: Sequence[tuple[int, int]] | None = None
) -> Tensor:
    """int64 [runs, 5] on the CPU: first number of the arena, end, client, and the client's first run and end.
    Up to CHUNK numbers each, client by client.

    trained  (first, length) of what is trained in `rest`; None: all of it
    """
    if trained is None:
        trained = [(0, num_rest)]
    layers, offsets, rows = len(bitmap.segments) // clients, bitmap.offsets.tolist(), list[tuple]()
    for g in range(clients):
        rest = bitmap.nnz + g * num_rest
        bounds = [(offsets[g * layers], offsets[(g + 1) * layers])]
        bounds += [(rest + first, rest + first + length) for first, length in trained]
        mine = [(at, min(at + CHUNK, hi), g) for lo, hi in bounds for at in range(lo, hi, CHUNK)]
        ends = len(rows), len(rows) + len(mine)
        rows += [(*one, *ends) for one in mine]
    return torch.tensor(rows, dtype=torch.int64).reshape(-1, 5)


def _running(numbers: Iterable[int]) -> tuple[int, ...]:
    return tuple(accumulate(numbers, initial=0))
