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
from sparsefl.kernels import bitmap as bitmaps
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
    return send(torch.from_numpy(x), device)


def stacked(
    models: Sequence[Model], device: torch.device, dense: Sequence[tuple[int, int]] = ()
) -> tuple[Bitmap, Tensor]:
    """Return the patterns of all models as one, and their arena (kernels/group.py). `dense`: (first, length)
    of weights in `rest` that are segments here, of every client after its own."""
    more = bitmaps.full([length for _, length in dense])
    sizes = (*models[0].layout.segments.sizes, *more.segments.sizes) * len(models)
    stored = torch.tensor(
        [n for model in models for n in (*model.bitmap.stored, *more.stored)], dtype=torch.int64
    )
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), stored.cumsum(0)])
    words = [part for model in models for part in (model.bitmap.words, more.words)]
    values = [part for model in models for part in (model.values, *_parts(model.rest, dense))]
    arena = _joined([*values, *(model.rest for model in models)], device)
    return Bitmap(_joined(words, device), Segments(sizes), offsets), arena


def _joined(parts: Sequence[Tensor], device: torch.device) -> Tensor:
    """One tensor on the device, of parts on the CPU or there."""
    if any(part.device.type != "cpu" for part in parts):
        return torch.cat([part.to(device) for part in parts])
    return send(torch.cat(list(parts)), device)


def unstacked(
    arena: Tensor, bitmap: Bitmap, models: Sequence[Model], dense: Sequence[tuple[int, int]] = ()
) -> None:
    """Write an arena, whose values are those of `bitmap`, back into its models."""
    values, rest = arena.tensor_split([bitmap.nnz])
    at = 0
    for model, its_rest in zip(models, rest.view(len(models), -1), strict=True):
        model.rest.copy_(its_rest)
        model.values.copy_(values[at : at + len(model.values)])
        at += len(model.values)
        for to in _parts(model.rest, dense):
            to.copy_(values[at : at + len(to)])
            at += len(to)


def split(
    bitmap: Bitmap,
    words: Tensor,
    arena: Tensor,
    models: Sequence[Model],
    dense: Sequence[tuple[int, int]] = (),
) -> list[Model]:
    """Return the models of a group on other patterns, `bitmap`, whose words and arena are here. They have
    the integer buffers of `models`."""
    layout, layers = models[0].layout, len(models[0].layout.names)
    found = []
    for g, (model, own) in enumerate(zip(models, _of_each(words, models), strict=True)):
        first = g * (layers + len(dense))
        offsets = bitmap.offsets[first : first + layers + 1]
        pattern = Bitmap(own, layout.segments, offsets - offsets[0])
        found.append(
            Model(
                layout,
                pattern,
                model.values.new_empty(pattern.nnz),
                model.rest.clone(),
                model.integers.clone(),
            )
        )
    unstacked(arena, bitmap, found, dense)
    return found


def patterns(words: Tensor, models: Sequence[Model]) -> list[Bitmap]:
    """Return each client's pattern out of the words of all; every layer stores as many entries as before."""
    segments = models[0].layout.segments
    pairs = zip(_of_each(words, models), models, strict=True)
    return [Bitmap(own, segments, model.bitmap.offsets) for own, model in pairs]


def _of_each(words: Tensor, models: Sequence[Model]) -> list[Tensor]:
    """The words of each client's own segments."""
    n = models[0].layout.segments.num_words
    parts = zip(words.view(len(models), -1), models, strict=True)
    return [part[:n].clone().to(model.values.device) for part, model in parts]


def _parts(rest: Tensor, dense: Sequence[tuple[int, int]]) -> list[Tensor]:
    return [rest[first : first + length] for first, length in dense]


class Fetched(NamedTuple):
    """On the CPU, in the order that they were asked for."""

    words: list[Tensor]
    floats: list[Tensor]
    integers: list[Tensor]


def fetched(words: Sequence[Tensor], floats: Sequence[Tensor], integers: Sequence[Tensor]) -> Fetched:
    """Return int64, float32 and int32 tensors of a device on the CPU, with one copy that is waited for."""
    every = [*words, *floats, *integers]
    flat = torch.cat([x.reshape(-1).view(torch.int32) for x in every]).cpu()
    sizes = [x.numel() * x.element_size() // 4 for x in every]
    parts = zip(flat.split(sizes), every, strict=True)
    here = [part.view(x.dtype).view(x.shape) for part, x in parts]
    n, m = len(words), len(words) + len(floats)
    return Fetched(here[:n], here[n:m], here[m:])


def send(x: Tensor, device: torch.device) -> Tensor:
    """A CPU tensor on `device`, without waiting for what is queued there."""
    return x.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else x.to(device)
