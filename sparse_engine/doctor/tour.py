"""Compressed weights step by step, in the shapes of ResNet18: `sparsefl tour`.

Every result is checked against the same computation on dense tensors with masks; a wrong one is named and
makes the exit code 1. The times are a look, not a measurement: `sparsefl bench ops` measures.
"""

from collections.abc import Callable
from copy import deepcopy
from math import ceil
from statistics import median
from time import perf_counter

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from sparse_engine.model.average import average
from sparse_engine.model.grow import rigl
from sparse_engine.model.masks import erk_masks
from sparse_engine.model.model import Model
from sparse_engine.model.prune import pqi, prune_counts, prune_pqi
from sparse_engine.nn.bridge import compress, load, prunable
from sparsefl.kernels import use_threads
from sparsefl.kernels.bitmap import to_mask
from sparsefl.kernels.masked_sgd import masked_sgd_
from sparsefl.kernels.pack import pack, unpack

DENSITIES = (0.5, 0.2)
NEIGHBOURS = 4
FRACTION = 0.3  # of the stored weights that RigL replaces
LR, DECAY = 0.1, 5e-4
REPEATS = 7

Work = Callable[[], object]


def run(console: Console, width: int = 64) -> int:
    """Print the tables and return the exit code. `width`: channels of the first layer, 64 in ResNet18."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the same for both sides, and as a worker of many clients runs
    try:
        with use_threads(1):
            return _show(console, network(width))
    finally:
        torch.set_num_threads(threads)


def _show(console: Console, net: nn.Module) -> int:
    shown = [Density(net, density) for density in DENSITIES]
    console.print(f"Weights in the shapes of ResNet18, {shown[0].state.bitmap.segments.numel:,} prunable.")
    console.print(_layers(shown), _models(shown), _times(shown), sep="\n")
    checks = {(name, one.density): right for one in shown for name, right in one.checks.items()}
    wrong = [where for where, right in checks.items() if not right]
    for name, density in wrong:
        console.print(f"FAILED: {name} at density {density:g}")
    if not wrong:
        console.print(f"{len(checks)} results checked against dense tensors with masks: ok")
    return 1 if wrong else 0


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, bias=False)
        self.bn1 = nn.GroupNorm(1, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, bias=False)
        self.bn2 = nn.GroupNorm(1, outputs)
        if inputs != outputs:
            self.shortcut = nn.Conv2d(inputs, outputs, 1, bias=False)


def network(width: int) -> nn.Module:
    """ResNet18's tensors without its forward pass. Deeper weights have heavier tails, so PQI has a range."""
    net = nn.Sequential()
    net.add_module("conv1", nn.Conv2d(3, width, 3, bias=False))
    channels = [width * n for n in (1, 1, 2, 4, 8)]
    for i in range(4):
        blocks = (Block(channels[i], channels[i + 1]), Block(channels[i + 1], channels[i + 1]))
        net.add_module(f"layer{i + 1}", nn.Sequential(*blocks))
    net.add_module("linear", nn.Linear(channels[-1], 10))
    generator = torch.Generator().manual_seed(0)
    weights = [x for x in net.parameters() if x.dim() > 1]
    with torch.no_grad():
        for depth, w in enumerate(weights):
            w.normal_(generator=generator)
            w.copy_(w.sign() * w.abs() ** (1 + depth / len(weights)) / w[0].numel() ** 0.5)
    return net


class Density:
    """Everything the tour shows at one density: a model, its neighbours, and what becomes of it."""

    def __init__(self, net: nn.Module, density: float) -> None:
        self.net, self.density = net, density
        shapes = {name: tuple(w.shape) for name, w in prunable(net).items()}
        models = [compress(net, erk_masks(shapes, density, seed)) for seed in range(1 + NEIGHBOURS)]
        for j, model in enumerate(models):
            model.values.mul_(1 + 0.1 * j)  # or the mean would be like every one of them
        self.state, self.neighbours = models[0], models[1:]
        self.gradient = {name: w.detach().roll(1) for name, w in prunable(net).items()}
        self.pqi = pqi(self.state)
        self.pruned = prune_pqi(self.state)
        self.grown = rigl(self.state, self.gradient, FRACTION)
        self.mean = average(self.state, self.neighbours)
        self.rivals = Rivals([self.state, *self.neighbours], self.gradient)
        self.checks = {
            "compress and load": self._loads(),
            "PQI": self.rivals.pqi().sub(torch.tensor([*self.pqi.values()])).abs().max() < 1e-4,
            "pruning": self._drops_the_smallest(),
            "RigL": self._replaces_smallest_by_largest(),
            "average": torch.allclose(_dense(self.mean), self.rivals.average(), rtol=1e-5, atol=1e-7),
            "SGD step": self._steps(),
        }

    def _loads(self) -> bool:
        loaded = load(deepcopy(self.net), self.state)
        written, original = (
            torch.cat([w.reshape(-1) for w in prunable(n).values()]) for n in (loaded, self.net)
        )
        return torch.equal(written, original * to_mask(self.state.bitmap))

    def _drops_the_smallest(self) -> bool:
        lost = self.state.bitmap.counts - self.pruned.bitmap.counts
        parts = zip(_split(self.state), _split(self.pruned), strict=True)
        smallest = [_largest(w, m & ~kept) <= _smallest(w, kept) for (w, m), (_, kept) in parts]
        return torch.equal(lost, prune_counts(self.state)) and all(smallest)

    def _replaces_smallest_by_largest(self) -> bool:
        right = []
        for g, (w, before), (v, after) in zip(
            self.gradient.values(), _split(self.state), _split(self.grown), strict=True
        ):
            kept = v != 0  # what has grown starts from 0
            dropped, grown = before & ~kept, after & ~kept
            n = ceil(FRACTION * int(before.sum()))
            right += [int(dropped.sum()) == n, int(grown.sum()) == n]
            right += [_largest(w, dropped) <= _smallest(w, kept)]
            right += [_largest(g.reshape(-1), ~after) <= _smallest(g.reshape(-1), grown)]
        return all(right)

    def _steps(self) -> bool:
        w = self.state.values.clone()
        masked_sgd_(w, self.rivals.packed_gradient, lr=LR, weight_decay=DECAY)
        return torch.allclose(unpack(w, self.state.bitmap), self.rivals.step(), rtol=1e-5, atol=1e-7)


class Rivals:
    """The operations on dense tensors with masks, in place, as one would write them in PyTorch."""

    def __init__(self, models: list[Model], gradient: dict[str, Tensor]) -> None:
        bitmap = models[0].bitmap
        self.sizes, self.counts = bitmap.segments.sizes, bitmap.counts.tolist()
        self.weights = [_dense(model) for model in models]
        self.masks = [to_mask(model.bitmap).float() for model in models]
        self.gradient = torch.cat([g.reshape(-1) for g in gradient.values()])
        self.packed_gradient = pack(self.gradient, bitmap)
        self.w, self.total, self.count = (self.weights[0].clone() for _ in range(3))

    def step(self) -> Tensor:
        return self.w.mul_(1 - LR * DECAY).addcmul_(self.gradient, self.masks[0], value=-LR)

    def pqi(self) -> Tensor:
        """Return the indices, by reciprocal roots: torch.sqrt takes some ten times as long as torch.rsqrt."""
        parts = (x.split(self.sizes) for x in (self.weights[0], self.total, self.count))
        found = []
        for w, absolute, root, d in zip(*parts, self.counts, strict=True):
            a = torch.abs(w, out=absolute)
            p, q = torch.dot(a, torch.clamp(a, min=1e-30, out=root).rsqrt_()) / d, a.sum() / d
            found.append(1 - p.square() / q)
        return torch.stack(found)

    def average(self) -> Tensor:
        total, count = self.total.copy_(self.weights[0]), self.count.copy_(self.masks[0])
        for w, m in zip(self.weights[1:], self.masks[1:], strict=True):
            total += w
            count += m
        return total.div_(count.clamp_(min=1)).mul_(self.masks[0])


def _layers(shown: list[Density]) -> Table:
    table = Table(title="Layers", title_justify="left")
    for name in ("weight", "shape"):
        table.add_column(name)
    for one in shown:
        for name in (f"density ({one.density:g})", "PQI", "pruned"):
            table.add_column(name, justify="right")
    for i, name in enumerate(shown[0].pqi):
        cells = []
        for one in shown:
            stored, left = int(one.state.bitmap.counts[i]), int(one.pruned.bitmap.counts[i])
            share = stored / one.state.bitmap.segments.sizes[i]
            cells += [f"{share:.3f}", f"{one.pqi[name]:.3f}", f"{1 - left / stored:.1%}"]
        shape = "x".join(map(str, shown[0].state.layout.shapes[i]))
        table.add_row(name.removesuffix(".weight"), shape, *cells)
    return table


def _models(shown: list[Density]) -> Table:
    table = Table(title="Models", title_justify="left")
    for name in ("", "density", "MB", "of dense", "what it is"):
        table.add_column(name, justify="right" if name in ("density", "MB", "of dense") else "left")
    dense = sum(x.nbytes for x in shown[0].net.state_dict().values())
    table.add_row("dense", "1", f"{dense / 1e6:.2f}", "1.000", "the torch module")
    for one in shown:
        for what, state, told in (
            ("compressed", one.state, "ERK mask: bitmap, packed values, the rest"),
            ("pruned", one.pruned, "without the smallest, as many as PQI says"),
            ("regrown", one.grown, f"RigL: {FRACTION:.0%} of the weights moved to larger gradients"),
            ("averaged", one.mean, f"with {NEIGHBOURS} neighbours of other masks, on its own mask"),
        ):
            size = f"{state.nbytes / 1e6:.2f}", f"{state.nbytes / dense:.3f}"
            table.add_row(what, f"{state.density:.3f}", *size, told)
    return table


def _times(shown: list[Density]) -> Table:
    table = Table(title=f"Milliseconds, 1 thread, median of {REPEATS}", title_justify="left")
    for name in ("", "density", "dense with mask", "sparsefl", "ratio"):
        table.add_column(name, justify="left" if name == "" else "right")
    for one in shown:
        for name, (theirs, ours) in _contests(one).items():
            rival, us = _in_turns(theirs, ours)
            table.add_row(name, f"{one.density:g}", f"{rival:.2f}", f"{us:.2f}", f"{rival / us:.1f}x")
    return table


def _contests(one: Density) -> dict[str, tuple[Work, Work]]:
    w, g = one.state.values.clone(), one.rivals.packed_gradient
    return {
        "SGD step": (one.rivals.step, lambda: masked_sgd_(w, g, lr=LR, weight_decay=DECAY)),
        f"average of {1 + NEIGHBOURS}": (one.rivals.average, lambda: average(one.state, one.neighbours)),
        "PQI of all layers": (one.rivals.pqi, lambda: pqi(one.state)),
    }


def _in_turns(*contestants: Work) -> list[float]:
    """Median milliseconds of each, taking turns after one round of warming up."""
    times: list[list[float]] = [[] for _ in contestants]
    for turn in range(1 + REPEATS):
        for mine, work in zip(times, contestants, strict=True):
            start = perf_counter()
            work()
            if turn:
                mine.append(1e3 * (perf_counter() - start))
    return [median(mine) for mine in times]


def _dense(state: Model) -> Tensor:
    return unpack(state.values, state.bitmap)


def _split(state: Model) -> list[tuple[Tensor, Tensor]]:
    """Dense values and mask of every layer, flat."""
    sizes = state.bitmap.segments.sizes
    return [*zip(_dense(state).split(sizes), to_mask(state.bitmap).split(sizes), strict=True)]


def _smallest(x: Tensor, where: Tensor) -> float:
    return float(x[where].abs().min()) if where.any() else float("inf")


def _largest(x: Tensor, where: Tensor) -> float:
    return float(x[where].abs().max()) if where.any() else 0.0
