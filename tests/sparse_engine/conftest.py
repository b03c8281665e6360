"""What the engine's tests share: golden cases, a toy network, random states."""

from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import randn, random_bitmap
from torch import nn

from sparse_engine.model.model import Entry, Layout, Model
from sparsefl.kernels.bitmap import from_mask
from sparsefl.kernels.pack import pack

TOY = {"conv1.weight": (8, 3, 3, 3), "conv2.weight": (16, 8, 3, 3), "fc.weight": (10, 64)}


class Toy(nn.Module):
    """Two convolutions, BatchNorm (so an integer buffer), a shortcut that is exempt, a linear layer."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3)
        self.bn1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 16, 3)
        self.shortcut = nn.Conv2d(8, 16, 1, bias=False)
        self.fc = nn.Linear(64, 10)


@pytest.fixture(scope="session")
def toy():
    """A function: a Toy whose every tensor is random."""

    def make(seed: int = 0) -> Toy:
        net = Toy()
        for i, x in enumerate(net.state_dict().values()):
            x.copy_(randn(x.numel(), 100 * seed + i).view(x.shape).mul(x.is_floating_point() or 2.0**40))
        return net

    return make


@pytest.fixture(scope="session")
def random_state():
    """A function: a state with random pattern and values over weights of these shapes, and a bias each."""

    def make(shapes=((6, 5), (4, 3, 3, 3), (130, 2)), density: float = 0.5, seed: int = 0) -> Model:
        names = tuple(f"w{i}" for i in range(len(shapes)))
        biases = tuple(Entry(f"b{i}", (shape[0],), torch.float32) for i, shape in enumerate(shapes))
        layout = Layout(names, tuple(map(tuple, shapes)), (*biases, Entry("steps", (), torch.int64)))
        bitmap = random_bitmap(layout.segments.sizes, density, seed)
        rest = randn(sum(shape[0] for shape in shapes), seed + 1)
        return Model(layout, bitmap, randn(bitmap.nnz, seed + 2), rest, torch.tensor([seed + 2**40]))

    return make


@pytest.fixture(scope="session")
def golden():
    """A function: one file of tests/data as {key: tensor}, masks (uint8) as bool."""

    def load(name: str) -> dict[str, torch.Tensor]:
        with np.load(Path(__file__).parents[1] / "data" / f"{name}.npz") as file:
            arrays = {key: file[key] for key in file if file[key].dtype.kind != "U"}
        return {
            k: torch.from_numpy(np.asarray(x)).to(torch.bool if x.dtype == np.uint8 else None)
            for k, x in arrays.items()
        }

    return load


@pytest.fixture(scope="session")
def golden_state():
    """A function: the golden toy network under `prefix` as a state, on the masks under `mask_prefix`."""

    def make(arrays: dict[str, torch.Tensor], prefix: str, mask_prefix: str | None = None) -> Model:
        weights = {name: arrays[prefix + name] for name in TOY}
        masks = [arrays[mask_prefix + name] if mask_prefix else w != 0 for name, w in weights.items()]
        biases = {name: arrays[prefix + name] for name in ("conv1.bias", "conv2.bias", "fc.bias")}
        entries = tuple(Entry(name, tuple(b.shape), b.dtype) for name, b in biases.items())
        layout = Layout(tuple(TOY), tuple(TOY.values()), entries)
        bitmap = from_mask(torch.cat([m.reshape(-1) for m in masks]), layout.segments)
        dense = torch.cat([w.reshape(-1) for w in weights.values()])
        empty = torch.empty(0, dtype=torch.int64, device=dense.device)
        return Model(layout, bitmap, pack(dense, bitmap), torch.cat(list(biases.values())), empty)

    return make
