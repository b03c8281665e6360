"""`se.compile`: a network whose training steps run natively, without autograd or Python between layers."""

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor, nn

from sparse_engine.model.model import Model
from sparse_engine.nn import precision
from sparse_engine.nn.bridge import EXEMPT, compress, load
from sparse_engine.nn.convert import to_dense
from sparse_engine.program.batches import Batches, Data, Training
from sparse_engine.program.capture import NotCaptured, capture
from sparse_engine.program.cpu.describe import describe
from sparse_engine.program.cpu.session import Session

Pairs = Iterable[tuple[Tensor, Tensor]]


class Program:
    """What `se.compile` returns: trains and evaluates the network natively.

    `model` is the model at rest. `print` it to see layers, shapes, kernels and memory.

    >>> import torch, sparse_engine as se
    >>> program = se.compile(se.sparsify(se.models.mlp(), density=0.2), torch.randn(32, 64))
    >>> print(str(program).splitlines()[0])
    MLP, samples 64
    """

    def __init__(self, net: nn.Module, sample: Tensor, exempt: str | Iterable[str] = EXEMPT) -> None:
        if sample.dim() < 2:
            raise ValueError(f"expected a sample batch [n, ...], got {tuple(sample.shape)}")
        self._net, self._exempt = net, exempt
        self.model: Model = compress(net, exempt=exempt)
        graph = capture(to_dense(net), tuple(sample.shape[1:]), self.model.layout)
        self._session = Session(graph, precision.of(net))
        self._batch = len(sample)
        self._velocity: Model | None = None
        self._passes = 0

    def train(
        self,
        batches: Pairs,
        *,
        lr: float,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        max_norm: float | None = None,
        seed: int = 0,
    ) -> float:
        """Train on every batch (x, y) once, write the result into the network, return the mean loss.

        batches       float32 x [n, ...] and integer labels y [n]: a DataLoader, or a list
        lr, momentum, weight_decay, max_norm  as `se.SparseSGD`; momentum lasts from call to call
        seed          of dropout

        If a loss is not finite, a FloatingPointError names the batch; the network stays as it was.
        """
        if momentum and self._velocity is None:
            self._velocity = _zeros(self.model)
        how = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "max_norm": max_norm}
        drawn = np.random.SeedSequence(seed).generate_state(self._session.graph.num_dropouts, np.uint64)
        total, seen, before = 0.0, 0, (self._velocity and self._velocity.clone(), self._passes)
        for number, (x, y) in enumerate(batches):
            given = Training(
                **how,  # type: ignore[arg-type]  # floats, or None for max_norm
                velocity=self._velocity if momentum else None,
                seeds=tuple(drawn.tolist()),
                first_pass=self._passes,
            )
            done = self._session.train(self.model, self._given(x, y), given)
            self._passes += 1
            if done.failed is not None:
                self.model = compress(self._net, exempt=self._exempt)
                self._velocity, self._passes = before
                raise FloatingPointError(f"expected a finite loss, got {done.failed[1]} in batch {number}")
            total, seen = total + done.loss, seen + done.samples
        load(self._net, self.model)
        return total / max(seen, 1)

    def evaluate(self, batches: Pairs) -> float:
        """Return the share of samples that get their own class, in evaluation mode."""
        right = seen = 0
        for x, y in batches:
            right += self._session.evaluate(self.model, self._given(x, y))
            seen += len(y)
        return right / max(seen, 1)

    def reload(self) -> None:
        """Take over what the network holds now: for masks or weights that were changed in it."""
        self.model = compress(self._net, exempt=self._exempt)
        self._velocity = None

    def profile(self, x: Tensor, y: Tensor, times: int = 10) -> list[tuple[str, float]]:
        """Return (step, seconds) of one training step, the least of `times`; nothing is trained."""
        return self._session.profile(self.model, self._given(x, y), times)

    def __str__(self) -> str:
        return describe(self._session.program(self.model.bitmap, self._batch))

    __repr__ = __str__

    def _given(self, x: Tensor, y: Tensor) -> Batches:
        if tuple(x.shape[1:]) != self._session.graph.sample or len(x) != len(y) or not len(x):
            wanted = f"[n, {', '.join(map(str, self._session.graph.sample))}]"
            raise ValueError(f"expected x {wanted} and n labels, got {tuple(x.shape)} and {tuple(y.shape)}")
        labels = y.to(torch.int64).numpy()
        if labels.min() < 0 or labels.max() >= self._session.graph.num_classes:
            wanted = f"labels from 0 to {self._session.graph.num_classes - 1}"
            raise ValueError(f"expected {wanted}, got {labels.min()} to {labels.max()}")
        images = x.detach().to(torch.float32).contiguous().numpy()
        return Batches(Data(images, np.ascontiguousarray(labels)), np.arange(len(labels)), len(labels))


def compile(net: nn.Module, sample: Tensor, exempt: str | Iterable[str] = EXEMPT) -> Program:
    """Return `net` as a program, captured once: whole training steps run in one native call.

    net     a network, sparse (`se.sparsify`) or dense; training writes into it
    sample  a batch [n, ...] of the shape that it will be trained with
    exempt  names of weights, or glob patterns, that are never sparse

    A network that cannot be captured raises `se.NotCaptured` with the reason; it trains layer by layer, with
    autograd, as before.

    >>> import torch, sparse_engine as se
    >>> net = se.sparsify(se.models.mlp(), density=0.2)
    >>> x, y = torch.randn(32, 64), torch.randint(0, 10, (32,))
    >>> program = se.compile(net, x)
    >>> losses = [program.train([(x, y)], lr=0.1) for _ in range(20)]
    >>> losses[-1] < losses[0]
    True
    """
    return Program(net, sample, exempt)


def _zeros(model: Model) -> Model:
    parts = (torch.zeros_like(x) for x in (model.values, model.rest, model.integers))
    return Model(model.layout, model.bitmap, *parts)


__all__ = ["NotCaptured", "Program", "compile"]
