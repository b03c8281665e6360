"""A group of clients on a device: patterns, numbers, and what is done with batches of their samples.

Nothing here waits for the device, but for a pruning; results are read by who asked (session.py).
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from sparse_engine.model.prune import PQIConfig, bounded, counts_of
from sparse_engine.program.batches import Training
from sparse_engine.program.gpu.given import Order, Resident, send
from sparse_engine.program.gpu.memory import Workspace
from sparse_engine.program.gpu.passes import Passes
from sparse_engine.program.gpu.plan import Plan
from sparsefl.kernels import bitmap as bitmaps
from sparsefl.kernels import group, group_conv, group_step
from sparsefl.kernels.group import Group
from sparsefl.kernels.layout import Bitmap, Packed
from sparsefl.kernels.masked_average import masked_average
from sparsefl.kernels.pqi import pqi
from sparsefl.kernels.select import drop, select


class State:
    """`flags`: numbers on the device that say what selections met (kernels/select)."""

    def __init__(self, plan: Plan, bitmap: Bitmap, arena: Tensor) -> None:
        self.plan, self.arena = plan, arena
        self.group: Group = group_conv.make(plan.network, bitmap)
        self.gradients = torch.zeros_like(arena)
        self.flags: list[Tensor] = []

    @property
    def _prunable(self) -> int:
        """How many of a client's segments may change: the others store everything."""
        return len(self.plan.network.layers) - len(self.plan.dense)

    @property
    def values(self) -> Tensor:
        return self.arena[: self.group.bitmap.nnz]

    def train(self, feed: "Feed", how: Training) -> Tensor:
        """All steps; the losses [steps, G] of those that ran."""
        device, bitmap = self.arena.device, self.group.bitmap
        rates = torch.tensor([how.lr, how.momentum, how.weight_decay, how.max_norm or 0.0])
        numbers = send(rates, device)
        velocity = torch.zeros_like(self.arena) if how.momentum else None
        runs = group.runs(bitmap, self.group.clients, self.plan.network.num_rest, self.plan.trained)
        table = send(runs, device)
        sums = torch.zeros(len(table), dtype=torch.float64, device=device) if how.max_norm else None

        def step() -> None:
            feed.backward(self)
            group_conv.weight_gradient(self.group, feed.work.images, self.gradients)
            if sums is not None:
                group_step.squares(self.gradients, table, sums)
            time = feed.order.samples, feed.clock
            group_step.sgd_(self.arena, self.gradients, velocity, table, *time, numbers, sums)

        done = repeat(step, feed.order.steps, lambda: how.stop is not None and bool(how.stop[0]))
        return feed.losses[:done]

    def evaluate(self, feed: "Feed") -> Tensor:
        """How many samples get their own class, int32 [steps, G]."""
        found = torch.zeros(feed.order.samples.shape[:2], dtype=torch.int32, device=self.arena.device)

        def step() -> None:
            feed.forward(self, training=False)
            labels = feed.data.labels, feed.order.samples, feed.clock
            group_step.hits(feed.work.logits, *labels, found)

        repeat(step, feed.order.steps)
        return found

    def pruned(self, cfg: PQIConfig, target_density: float) -> "State":
        """The group without the smallest entries, by PQ index; waits for the indices."""
        bitmap, clients = self.group.bitmap, self.group.clients
        index = pqi(self.values, bitmap.offsets, p=cfg.p, q=cfg.q).pqi.view(clients, -1)
        counts, prunable = bitmap.counts.view(clients, -1), self._prunable
        numel, c = sum(self.plan.network.sizes[:prunable]), torch.zeros_like(counts)
        for i, d, n in zip(index[:, :prunable], counts[:, :prunable], c, strict=True):
            if i.isfinite().all():  # or it has diverged: its numbers say so
                n[:prunable] = bounded(counts_of(i, d, cfg), int(d.sum()), numel, target_density)
        kept = drop(self.values, bitmap, c.flatten(), self.flags)
        values = masked_average(kept, [Packed(bitmap, self.values)])
        made = State(self.plan, kept, torch.cat([values, self.arena[bitmap.nnz :]]))
        made.flags = self.flags
        return made

    def moved(self, feed: "Feed", fraction: float) -> tuple[Tensor, Tensor]:
        """RigL's next patterns of all clients as words, and the gradients of the first batch, [G * weights]:
        one selection that drops and one that grows, over all layers of all clients."""
        feed.backward(self)
        bitmap = self.group.bitmap
        gradients = torch.empty(bitmap.segments.numel, device=self.arena.device)
        group_conv.dense_gradient(self.group, feed.work.images, gradients)
        n = torch.tensor([math.ceil(fraction * d) for d in bitmap.stored], dtype=torch.int64)
        n.view(self.group.clients, -1)[:, self._prunable :] = 0
        kept = drop(self.values, bitmap, n, self.flags)
        others = bitmaps.complement(kept)
        grown = select(gradients, others, n, largest=True, dense=True, later=self.flags)
        return kept.words | grown.words, gradients


class Feed:
    """Batches of a group on their way through its network."""

    def __init__(self, plan: Plan, order: Order, data: Resident, work: Workspace) -> None:
        device = order.samples.device
        self.plan, self.order, self.data, self.work = plan, order, data, work
        self.clock = torch.zeros(2, dtype=torch.int64, device=device)
        self.losses = torch.zeros(order.samples.shape[:2], device=device)

    def forward(self, state: State, training: bool) -> None:
        data, order = self.data, self.order
        group_step.gather(data.x, data.scale, order.samples, self.clock, self.work.value[0], order.moves)
        self._passes(state).forward(training)

    def backward(self, state: State) -> None:
        """Forward, loss, and the gradients of every layer's output and every norm's parameters."""
        self.forward(state, training=True)
        labels = self.data.labels, self.order.samples, self.clock
        to = self.losses, self.work.gradient[self.plan.logits]
        group_step.loss(self.work.logits, *labels, *to)
        self._passes(state).backward()

    def _passes(self, state: State) -> Passes:
        given = state.group, state.arena, state.gradients, self.order.samples, self.clock
        return Passes(self.plan, self.work, *given)


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
