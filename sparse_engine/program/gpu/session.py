"""Runs a graph for groups of clients on one device: trainings, tests, growth, and whole visits.

A step is a list of launches over one workspace: batches, layers, loss, input gradients, weight gradients of
all layers, SGD. Nothing of a step passes through the host; what it depends on (the step's number, the rate)
lies on the card. On a real card all steps after the first are replays of one CUDA graph, captured then.

A visit keeps the group on the card from its tests to its growth, and the host waits twice, for what
it sends and for all results; with a pruning once more, for the PQ indices.

Results are those of the CPU within rounding: the same samples, draws and rules.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from sparse_engine.model.grow import check_fraction
from sparse_engine.model.model import Model
from sparse_engine.model.prune import PQIConfig
from sparse_engine.program.batches import Batches, Data, Trained, Training
from sparse_engine.program.gpu import given
from sparse_engine.program.gpu.given import Resident
from sparse_engine.program.gpu.memory import Workspace
from sparse_engine.program.gpu.plan import NormOp, NotOnGpu, plan
from sparse_engine.program.gpu.state import Feed, State
from sparse_engine.program.steps import Graph
from sparsefl.kernels import devices
from sparsefl.kernels.layout import Bitmap


class NotFinite(FloatingPointError):
    """The gradient of a weight is not finite: `client` in the group, and the weight's name."""

    def __init__(self, client: int, name: str) -> None:
        super().__init__(f"client {client} of the group: the gradient of {name} is not finite")
        self.client, self.name = client, name


class Prune(NamedTuple):
    """PQI pruning, not beyond a density."""

    config: PQIConfig
    target_density: float


class Grow(NamedTuple):
    """RigL by the gradients of these batches, one per client; `batch`: the size that they have if a client
    has enough samples."""

    fraction: float
    batches: Sequence[Batches]
    batch: int = 1


class Visited(NamedTuple):
    """What came of a client's visit; `pruned` is `model` where nothing was pruned."""

    trained: Trained
    model: Model
    pruned: Model
    mask: Bitmap | None


class GroupSession:
    """Not for two threads at once."""

    def __init__(self, graph: Graph, device: torch.device | str) -> None:
        self.graph, self.plan = graph, plan(graph)
        self.device = devices.numbered(device)
        self._workspaces: dict[tuple[int, int], Workspace] = {}

    def train(
        self,
        models: Sequence[Model],
        batches: Sequence[Batches],
        how: Training,
        tests: Sequence[Batches] | None = None,
        batch: int = 1,
    ) -> list[Trained]:
        """Train every client's model in place, all at once.

        tests  as Session.train's, one per client, which may be empty
        batch  the size that batches have where a client has enough samples: sums are added up for it
        """
        return [done.trained for done in self.visit(models, batches, how, tests, batch=batch)]

    def visit(
        self,
        models: Sequence[Model],
        batches: Sequence[Batches],
        how: Training,
        tests: Sequence[Batches] | None = None,
        *,
        prune: Prune | None = None,
        grow: Grow | None = None,
        batch: int = 1,
    ) -> list[Visited]:
        """Test, train and test every client's model in place, prune it, and move its mask. `tests`, `batch`:
        as `train`'s. NotFinite: by what gradients a mask would have moved."""
        _check(models, batches, how)
        state = self._state(models)
        feed = None if tests is None else self._feed(tests, batch)
        right = [] if feed is None else [state.evaluate(feed)]
        losses = state.train(self._feed(batches, batch), how)
        if feed is not None:
            right.append(state.evaluate(self._feed(tests or (), batch)))
        left = state if prune is None else state.pruned(*prune)
        words, gradients = [], None
        if grow is not None:
            check_fraction(grow.fraction)
            moved, gradients = left.moved(
                self._feed(grow.batches, grow.batch, first_only=True), grow.fraction
            )
            words.append(moved)
        stored = [left.group.bitmap.words] if prune is not None else []
        numbers = [left.arena] if prune is not None else []
        found = given.fetched([*stored, *words], [state.arena, losses, *numbers], [*right, *left.flags])
        given.unstacked(found.floats[0], state.group.bitmap, models, self.plan.dense)
        self._count(models, batches, len(losses))
        hits = [each.sum(0).tolist() for each in found.integers[: len(right)]]
        trained = [
            _trained(found.floats[1][:, g], batches[g], model, [n[g] for n in hits])
            for g, model in enumerate(models)
        ]
        fine = all(one.finite and one.failed is None for one in trained)
        flags = found.integers[len(right) :]
        if gradients is not None and fine and any(int(flag) for flag in flags[-2:]):
            raise self._not_finite(gradients, models)
        pruned: Sequence[Model] = models
        if prune is not None:
            pruned = given.split(left.group.bitmap, found.words[0], found.floats[-1], models, self.plan.dense)
        masks: Sequence[Bitmap | None] = [None] * len(models)
        if grow is not None:
            masks = given.patterns(found.words[-1], pruned)
        return [Visited(*row) for row in zip(trained, models, pruned, masks, strict=True)]

    def evaluate(self, models: Sequence[Model], batches: Sequence[Batches], batch: int = 1) -> list[int]:
        """Return how many samples get their own class, per client."""
        _check(models, batches, None)
        feed = self._feed(batches, batch)  # a batch that is too large is refused first
        return self._state(models).evaluate(feed).cpu().sum(0).tolist()

    def grow(
        self, models: Sequence[Model], fraction: float, batches: Sequence[Batches], batch: int = 1
    ) -> list[Bitmap]:
        """Return RigL's next pattern of every client by the gradient of its first batch. NotFinite: there is
        none."""
        check_fraction(fraction)
        _check(models, batches, None)
        state = self._state(models)
        words, gradients = state.moved(self._feed(batches, batch, first_only=True), fraction)
        found = given.fetched([words], [], state.flags)
        if any(int(flag) for flag in found.integers):
            raise self._not_finite(gradients, models)
        return given.patterns(found.words[0], models)

    def resident(self, data: Data) -> Resident:
        """Return the data set on the card; sent the first time."""
        return given.resident(data, self.graph.values[0], self.device)

    def workspace(self, clients: int, batch: int) -> Workspace:
        """Return the memory for groups and batches of this size; the last one is kept."""
        if (clients, batch) not in self._workspaces:
            self._workspaces = {(clients, batch): Workspace(self.plan, clients, batch, self.device)}
        return self._workspaces[clients, batch]

    def _state(self, models: Sequence[Model]) -> State:
        return State(self.plan, *given.stacked(models, self.device, self.plan.dense))

    def _feed(self, batches: Sequence[Batches], batch: int, first_only: bool = False) -> Feed:
        order = given.order_of(batches, self.device, first_only, batch)
        work = self.workspace(len(batches), order.samples.shape[-1])
        return Feed(self.plan, order, self.resident(given.one_data(batches)), work)

    def _not_finite(self, gradients: Tensor, models: Sequence[Model]) -> NotFinite:
        """Whose gradient is not finite, the first one, and of which weight: the last one, as a pass backward
        meets them."""
        sizes, names = self.plan.network.sizes, models[0].layout.names
        parts = gradients.cpu().split(list(sizes) * len(models))
        wrong = [divmod(i, len(sizes)) for i, part in enumerate(parts) if not torch.isfinite(part).all()]
        found = [(g, number) for g, number in wrong if number < len(names)] or [(0, 0)]
        return NotFinite(found[0][0], names[max(number for g, number in found if g == found[0][0])])

    def _count(self, models: Sequence[Model], batches: Sequence[Batches], steps: int) -> None:
        """Batch norms count their batches."""
        counts = [op.count for op in self.plan.ops if isinstance(op, NormOp) and op.count is not None]
        for model, mine in zip(models, batches, strict=True) if counts else ():
            model.integers[counts] += min(steps, given.steps_of(mine))


def _check(models: Sequence[Model], batches: Sequence[Batches], how: Training | None) -> None:
    if not models or len(models) != len(batches):
        raise ValueError(f"expected a list of batches per model, got {len(batches)} for {len(models)} models")
    if how is None:
        return
    missing = {
        "SAM (rho)": how.rho != 0,
        "training that is drawn towards a model (pull)": how.pull is not None,
        "momentum that lasts from call to call (velocity)": how.velocity is not None,
        "growth by the last batch's gradients (scores)": how.scores is not None,
    }
    for what, asked in missing.items():
        if asked:
            raise NotOnGpu(f"there is no GPU version of {what} yet")


def _trained(losses: Tensor, batches: Batches, model: Model, right: Sequence[int]) -> Trained:
    """What came of a client's training, from its losses step by step; `right`: before and after, or empty."""
    sizes = [min(batches.size, batches.samples - at) for at in range(0, batches.samples, batches.size)]
    sizes = (sizes * batches.epochs)[: len(losses)]
    stopped = len(sizes) < len(range(0, batches.samples, batches.size)) * batches.epochs
    total, seen = 0.0, 0
    finite = bool(torch.isfinite(model.values).all() and torch.isfinite(model.rest).all())
    for number, (summed, n) in enumerate(zip(losses.double().tolist(), sizes, strict=False)):
        if not math.isfinite(summed):
            return Trained(total, seen, (number, summed / n), False, finite)
        total, seen = total + summed, seen + n
    both = (right[0], right[1]) if right else None
    return Trained(total, seen, None, stopped, finite, both)
