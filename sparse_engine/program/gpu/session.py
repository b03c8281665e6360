"""Runs a graph for groups of clients on one device: trainings, tests and growth.

A step is a list of launches over one workspace: batches, layers, loss, input gradients, weight gradients of
all layers, SGD. Nothing of a step passes through the host; what it depends on (the step's number, the rate)
lies on the card. On a real card all steps after the first are replays of one CUDA graph, captured then.

Results are those of the CPU within rounding: the same samples, draws and rules.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from sparse_engine.model.grow import check_fraction
from sparse_engine.model.model import Model
from sparse_engine.program.batches import Batches, Data, Trained, Training
from sparse_engine.program.gpu import given
from sparse_engine.program.gpu.given import Resident
from sparse_engine.program.gpu.memory import Workspace
from sparse_engine.program.gpu.passes import Passes
from sparse_engine.program.gpu.plan import NormOp, NotOnGpu, plan
from sparse_engine.program.steps import Graph
from sparsefl.kernels import bitmap as bitmaps
from sparsefl.kernels import devices, group, group_conv, group_step
from sparsefl.kernels.group import Group
from sparsefl.kernels.layout import Bitmap
from sparsefl.kernels.select import drop, select


class NotFinite(FloatingPointError):
    """The gradient of a weight is not finite: `client` in the group, and the weight's name."""

    def __init__(self, client: int, name: str) -> None:
        super().__init__(f"client {client} of the group: the gradient of {name} is not finite")
        self.client, self.name = client, name


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
        _check(models, batches, how)
        before = None if tests is None else self.evaluate(models, tests, batch)
        ran = _Running(self, models, batches, batch)
        losses = ran.train(how)
        given.unstacked(ran.arena, models)
        self._count(models, batches, len(losses))
        after = None if tests is None else self.evaluate(models, tests, batch)
        found = [_trained(losses[:, g], batches[g], models[g]) for g in range(len(models))]
        if before is None or after is None:
            return found
        return [
            one._replace(right=right)
            for one, right in zip(found, zip(before, after, strict=True), strict=True)
        ]

    def evaluate(self, models: Sequence[Model], batches: Sequence[Batches], batch: int = 1) -> list[int]:
        """Return how many samples get their own class, per client."""
        _check(models, batches, None)
        return _Running(self, models, batches, batch).evaluate()

    def grow(
        self, models: Sequence[Model], fraction: float, batches: Sequence[Batches], batch: int = 1
    ) -> list[Bitmap]:
        """Return RigL's next pattern of every client by the gradient of its first batch: one selection that
        drops and one that grows, over all layers of all clients. NotFinite: there is none."""
        check_fraction(fraction)
        _check(models, batches, None)
        ran = _Running(self, models, batches, batch, first_only=True)
        gradients = ran.dense_gradients()
        n = torch.tensor([math.ceil(fraction * d) for d in ran.group.bitmap.stored], dtype=torch.int64)
        kept = drop(ran.arena[: ran.group.bitmap.nnz], ran.group.bitmap, n)
        try:
            grown = select(gradients, bitmaps.complement(kept), n, largest=True, dense=True)
        except ValueError:
            raise _not_finite(gradients, models) from None
        return given.patterns(kept.words | grown.words, models)

    def resident(self, data: Data) -> Resident:
        """Return the data set on the card; sent the first time."""
        return given.resident(data, self.graph.values[0], self.device)

    def workspace(self, clients: int, batch: int) -> Workspace:
        """Return the memory for groups and batches of this size; the last one is kept."""
        if (clients, batch) not in self._workspaces:
            self._workspaces = {(clients, batch): Workspace(self.plan, clients, batch, self.device)}
        return self._workspaces[clients, batch]

    def _count(self, models: Sequence[Model], batches: Sequence[Batches], steps: int) -> None:
        """Batch norms count their batches."""
        counts = [op.count for op in self.plan.ops if isinstance(op, NormOp) and op.count is not None]
        for model, mine in zip(models, batches, strict=True):
            model.integers[counts] += min(steps, given.steps_of(mine))


class _Running:
    """A group with its batches on the card."""

    def __init__(
        self,
        session: GroupSession,
        models: Sequence[Model],
        batches: Sequence[Batches],
        batch: int,
        first_only: bool = False,
    ) -> None:
        self.plan, device = session.plan, session.device
        network, order = self.plan.network, given.order_of(batches, device, first_only, batch)
        bitmap, self.arena = given.stacked(models, device)
        self.group: Group = group_conv.make(network, bitmap)
        self.order, self.steps, self.moves = order.samples, order.steps, order.moves
        self.data = session.resident(given.one_data(batches))
        self.work = session.workspace(len(models), self.order.shape[-1])
        self.clock = torch.zeros(2, dtype=torch.int64, device=device)
        self.losses = torch.zeros(self.order.shape[:2], device=device)
        self.gradients = torch.zeros_like(self.arena)
        time = self.order, self.clock
        self.passes = Passes(self.plan, self.work, self.group, self.arena, self.gradients, *time)

    def train(self, how: Training) -> Tensor:
        """All steps; the losses [steps, G], on the CPU, nan where they were not computed."""
        device, clients = self.arena.device, self.group.clients
        numbers = torch.tensor([how.lr, how.momentum, how.weight_decay, how.max_norm or 0.0]).to(device)
        velocity = torch.zeros_like(self.arena) if how.momentum else None
        rest = self.plan.network.num_rest, self.plan.trained
        table, gradients = group.runs(self.group.bitmap, clients, *rest).to(device), self.gradients
        sums = torch.zeros(len(table), dtype=torch.float64, device=device) if how.max_norm else None

        def step() -> None:
            self.backward()
            group_conv.weight_gradient(self.group, self.work.images, gradients)
            if sums is not None:
                group_step.squares(gradients, table, sums)
            group_step.sgd_(self.arena, gradients, velocity, table, self.order, self.clock, numbers, sums)

        done = repeat(step, self.steps, lambda: how.stop is not None and bool(how.stop[0]))
        return self.losses[:done].cpu()

    def evaluate(self) -> list[int]:
        found = torch.zeros(self.order.shape[:2], dtype=torch.int32, device=self.arena.device)

        def step() -> None:
            self.forward(training=False)
            group_step.hits(self.work.logits, self.data.labels, self.order, self.clock, found)

        repeat(step, self.steps)
        return found.sum(0).tolist()

    def dense_gradients(self) -> Tensor:
        """[G * weights]: those of the first batch."""
        self.backward()
        out = torch.empty(self.group.bitmap.segments.numel, device=self.arena.device)
        group_conv.dense_gradient(self.group, self.work.images, out)
        return out

    def forward(self, training: bool) -> None:
        data = self.data
        group_step.gather(data.x, data.scale, self.order, self.clock, self.work.value[0], self.moves)
        self.passes.forward(training)

    def backward(self) -> None:
        """Forward, loss, and the gradients of every layer's output and every norm's parameters."""
        self.forward(training=True)
        work, given_labels = self.work, (self.data.labels, self.order, self.clock)
        group_step.loss(work.logits, *given_labels, self.losses, work.gradient[self.plan.logits])
        self.passes.backward()


def repeat(step: Callable[[], None], times: int, stopped: Callable[[], bool] = lambda: False) -> int:
    """Run `step` so many times, on a real card by replaying its launches; return how often it ran.

    The first time, kernels are loaded and tables sent; then the launches are captured.
    """
    graph: torch.cuda.CUDAGraph | None = None
    for t in range(times):
        if stopped():
            return t
        if t == 0 or not torch.cuda.is_initialized():  # no driver: an interpreter, or a virtual card
            step()
            continue
        if graph is None:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                step()
        graph.replay()
    return times


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


def _not_finite(gradients: Tensor, models: Sequence[Model]) -> NotFinite:
    """Whose gradient is not finite, the first one, and of which weight: the last one, as a pass backward
    meets them."""
    layout = models[0].layout
    parts = gradients.cpu().split(list(layout.segments.sizes) * len(models))
    wrong = [i for i, part in enumerate(parts) if not torch.isfinite(part).all()]
    layers = len(layout.names)
    client = wrong[0] // layers
    return NotFinite(client, layout.names[max(i for i in wrong if i // layers == client) % layers])


def _trained(losses: Tensor, batches: Batches, model: Model) -> Trained:
    """What came of a client's training, from its losses step by step."""
    sizes = [min(batches.size, batches.samples - at) for at in range(0, batches.samples, batches.size)]
    sizes = (sizes * batches.epochs)[: len(losses)]
    stopped = len(sizes) < len(range(0, batches.samples, batches.size)) * batches.epochs
    total, seen = 0.0, 0
    finite = bool(torch.isfinite(model.values).all() and torch.isfinite(model.rest).all())
    for number, (summed, n) in enumerate(zip(losses.double().tolist(), sizes, strict=False)):
        if not math.isfinite(summed):
            return Trained(total, seen, (number, summed / n), False, finite)
        total, seen = total + summed, seen + n
    return Trained(total, seen, None, stopped, finite)
