"""What a group is given, on the card: models as one arena, the data set, and the samples of every step."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sparse_engine.model.model import Model
from sparse_engine.program.batches import Batches, Data
from sparse_engine.program.gpu.plan import NotOnGpu
from sparsefl.kernels.group import lanes_for
from sparsefl.kernels.layout import Bitmap, Segments


class Resident(NamedTuple):
    """A data set that stays on the card."""

    x: Tensor  # uint8 or float32 [samples, C, H, W]
    scale: Tensor  # float32 [2, C]
    labels: Tensor  # int32


class Order(NamedTuple):
    """Batches of a group: samples [steps, G, B] (-1: none), and how images are moved."""

    samples: Tensor
    moves: Tensor | None

    @property
    def steps(self) -> int:
        return len(self.samples)


def resident(data: Data, shape: tuple[int, int, int], device: torch.device) -> Resident:
    """Return `data` on `device`; sent once."""

    def made() -> Resident:
        channels = shape[0]
        x = torch.from_numpy(np.ascontiguousarray(data.x).reshape(-1, *shape))
        scale = torch.stack([torch.zeros(channels), torch.ones(channels)])
        if data.mean is not None and data.std is not None:
            if len(data.mean) not in (1, channels):
                raise NotOnGpu(f"there is no GPU version of {len(data.mean)} means for {channels} channels")
            for row, numbers in zip(scale, (data.mean, data.std), strict=True):
                row.copy_(torch.from_numpy(numbers))
        return Resident(x.to(device), scale.to(device), torch.from_numpy(data.labels).int().to(device))

    return data.derived.of(f"resident {device}", made)


def one_data(batches: Sequence[Batches]) -> Data:
    """Return the data set of all clients."""
    first = batches[0].data
    if any(each.data is not first for each in batches):
        raise NotOnGpu("expected the batches of a group out of one data set, got several")
    return first


def order_of(
    batches: Sequence[Batches], device: torch.device, first_only: bool = False, batch: int = 1
) -> Order:
    """Return the steps of a group, every client's batches from the first one on; sent at once.

    batch  they run on as many lanes as one of this size: sums then do not depend on who else is there
    """
    lanes = lanes_for(max(batch, *(each.size for each in batches)))
    rows = [_rows(each)[: 1 if first_only else None] for each in batches]
    steps = max(map(len, rows))
    samples = np.full((steps, len(batches), lanes), -1, np.int32)
    moved = any(each.moves is not None for each in batches)
    moves = np.zeros((steps, len(batches), lanes, 3), np.int32) if moved else None
    for g, (each, mine) in enumerate(zip(batches, rows, strict=True)):
        for t, now in enumerate(mine):
            n = now.stop - now.start
            samples[t, g, :n] = each.order[now]
            if moves is not None and each.moves is not None:
                part, pad = each.moves.part(now), each.moves.padding
                moves[t, g, :n] = np.stack([part.rows - pad, part.columns - pad, part.mirrored], -1)
    return Order(_sent(samples, device), None if moves is None else _sent(moves, device))


def steps_of(batches: Batches) -> int:
    """How many batches there are."""
    return len(_rows(batches))


def _rows(batches: Batches) -> list[slice]:
    """Where each batch is in the order."""
    per_epoch = range(0, batches.samples, batches.size)
    return [
        slice(epoch * batches.samples + at, epoch * batches.samples + min(at + batches.size, batches.samples))
        for epoch in range(batches.epochs)
        for at in per_epoch
    ]


def _sent(x: NDArray[np.int32], device: torch.device) -> Tensor:
    return torch.from_numpy(x).to(device)


def stacked(models: Sequence[Model], device: torch.device) -> tuple[Bitmap, Tensor]:
    """Return the patterns of all models as one, and their arena (kernels/group.py)."""
    sizes = models[0].layout.segments.sizes * len(models)
    stored = torch.tensor([n for model in models for n in model.bitmap.stored], dtype=torch.int64)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), stored.cumsum(0)])
    words = torch.cat([model.bitmap.words for model in models]).to(device)
    arena = torch.cat([*(model.values for model in models), *(model.rest for model in models)]).to(device)
    return Bitmap(words, Segments(sizes), offsets), arena


def unstacked(arena: Tensor, models: Sequence[Model]) -> None:
    """Write an arena back into its models."""
    there = arena.to(models[0].values.device)
    parts = [*(model.values for model in models), *(model.rest for model in models)]
    for to, part in zip(parts, there.split([len(part) for part in parts]), strict=True):
        to.copy_(part)


def patterns(words: Tensor, models: Sequence[Model]) -> list[Bitmap]:
    """Return each client's pattern out of the words of all; every layer stores as many entries as before."""
    segments, there = models[0].layout.segments, words.to(models[0].values.device)
    parts = zip(there.split(segments.num_words), models, strict=True)
    return [Bitmap(part.clone(), segments, model.bitmap.offsets) for part, model in parts]
