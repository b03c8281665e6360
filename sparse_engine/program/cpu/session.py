"""Runs the programs of one graph, for one worker: the workspace, and the programs that were made so far."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch

from sparse_engine.choice import plan
from sparse_engine.model.grow import Growth
from sparse_engine.model.model import Model
from sparse_engine.program import steps
from sparse_engine.program.batches import Batches, Data, Trained, Training
from sparse_engine.program.cpu.convs import lanes_for
from sparse_engine.program.cpu.program import CpuProgram, choose
from sparse_engine.program.steps import Graph
from sparsefl.kernels.gather._cpu import native_moves, native_samples
from sparsefl.kernels.layout import Bitmap, Segments
from sparsefl.kernels.native import address, bf16_dot, extension, num_threads, pointer

Value = TypeVar("Value")
_KEPT = 32  # programs: clients whose layers have other densities may run on other kernels


class Session:
    """Not for two threads at once. Results depend neither on what ran before nor on the number of threads."""

    def __init__(self, graph: Graph, precision: str = "fp32") -> None:
        """precision: "fp32", or "bf16": values between steps and their gradients are bfloat16."""
        self.graph, self._bf16 = graph, precision == "bf16"
        self._norms = [step for step in graph.steps if isinstance(step, steps.BatchNorm)]
        self._workspace = extension().program.Workspace()
        self._programs: OrderedDict[tuple, CpuProgram] = OrderedDict()
        self._kernels: OrderedDict[tuple, tuple] = OrderedDict()
        self._last: tuple[tuple, CpuProgram] | None = None

    def program(self, mask: Bitmap, batch: int) -> CpuProgram:
        """Return the program for models that store as many entries as `mask`, and batches of that size."""
        asked = (mask, batch, *self._machine(), plan.current())
        if self._last is None or self._last[0] != asked:  # a turn asks several times
            self._last = (asked, self._found(mask, batch))
        return self._last[1]

    def _machine(self) -> tuple[str, bool]:
        """The instruction set, and whether it has one instruction for products of bfloat16 pairs."""
        return extension().isa(), self._bf16 and bf16_dot()

    def _found(self, mask: Bitmap, batch: int) -> CpuProgram:
        lanes, machine, counts = lanes_for(batch), self._machine(), mask.stored
        key = (lanes, *machine, plan.current().identity())
        how = partial(choose, self.graph, counts, lanes, self._bf16)
        kernels = _kept(self._kernels, (*key, *counts), how, 8 * _KEPT)
        make = partial(CpuProgram, self.graph, lanes, kernels, self._bf16, machine[1])
        return _kept(self._programs, (*key, kernels), make, _KEPT)

    def train(self, model: Model, batches: Batches, how: Training, test: Batches | None = None) -> Trained:
        """Train `model` in place. `test`: how many of these get their own class, before and after it, is
        counted too."""
        seeds = np.array(how.seeds, np.uint64)
        native = native_training(how, address(seeds, np.uint64), model.bitmap.segments)
        self.check_norms(batches.samples, batches.size)
        tests = None if test is None else _batches(test)
        return trained(self._call("train", model, batches, native, tests))

    def gradient(self, model: Model, batches: Batches, seeds: tuple[int, ...] = ()) -> tuple[Model, Trained]:
        """Return the gradient of the mean loss over all samples, in the form of a model with buffers of 0."""
        drawn = np.array(seeds, np.uint64)
        values, rest, integers = (torch.zeros_like(x) for x in (model.values, model.rest, model.integers))
        into = address(drawn, np.uint64), pointer(values), pointer(rest)
        self.check_norms(batches.samples, batches.size)
        done = trained(self._call("gradient", self._with_own_buffers(model), batches, *into))
        for part in (values, rest):
            part.div_(max(done.samples, 1))
        return Model(model.layout, model.bitmap, values, rest, integers), done

    def evaluate(self, model: Model, batches: Batches) -> int:
        """Return how many samples get their own class."""
        return self._call("evaluate", model, batches)

    def grow(
        self, model: Model, growth: Growth, batches: Batches, seeds: tuple[int, ...] = ()
    ) -> Bitmap | str:
        """Return RigL's next pattern by the gradient of the first batch; the name of a weight whose gradient
        is not finite instead."""
        kept, drawn = growth.kept.words, np.array(seeds, np.uint64)
        words = kept.clone()
        self.check_norms(batches.samples, batches.size)
        given = (pointer(x, torch.int64) for x in (kept, growth.n, words))
        failed = self._call("grow", self._with_own_buffers(model), batches, address(drawn, np.uint64), *given)
        return growth.layout.bitmap(words) if failed < 0 else growth.layout.names[failed]

    def profile(self, model: Model, batches: Batches, times: int = 10) -> list[tuple[str, float]]:
        """Return every step of a training on the first batch, and its seconds: the least of `times` runs."""
        program = self.program(model.bitmap, batches.size)
        seeds = np.zeros(self.graph.num_dropouts, np.uint64)
        given = True, address(seeds, np.uint64), times
        seconds = self._call("profile", self._with_own_buffers(model), batches, *given)
        return [(str(step), s) for step, s in zip(program.planned["train"], seconds, strict=True)]

    @property
    def has_norms(self) -> bool:
        """Does the network keep statistics of batches?"""
        return bool(self._norms)

    @property
    def workspace(self) -> Any:
        """The memory of its programs."""
        return self._workspace

    def check_norms(self, samples: int, batch: int) -> None:
        """ValueError, as torch has it: one value has no variance."""
        if samples and (batch == 1 or samples % batch == 1):
            for step in self._norms:
                if self.graph.values[step.x][1:] == (1, 1):
                    wanted = f"more than one value per channel when training {step.name}"
                    raise ValueError(f"expected {wanted}, got a batch of 1")

    def _with_own_buffers(self, model: Model) -> Model:
        """`model`, whose buffers a pass may write into: what batch norms keep moves in it."""
        if not self._norms:
            return model
        return replace(model, rest=model.rest.clone(), integers=model.integers.clone())

    def _call(self, name: str, model: Model, batches: Batches, *given: Any) -> Any:
        program = self.program(model.bitmap, batches.size).native
        run = getattr(extension().program, name)
        return run(program, self._workspace, _arenas(model), _batches(batches), *given, num_threads())


def native_training(how: Training, seeds: int, segments: Segments) -> Any:
    """csrc/program/program.h's; `seeds`: the address of how.seeds. Keeps no array alive."""
    towards, rate = how.pull or (None, 0.0)
    return extension().program.Training(
        sgd=extension().Sgd(
            lr=how.lr, momentum=how.momentum, weight_decay=how.weight_decay, scale=1.0, nesterov=False
        ),
        max_norm=how.max_norm or 0.0,
        rho=how.rho,
        pull_rate=rate,
        pull_values=0 if towards is None else pointer(towards.values),
        pull_rest=0 if towards is None else pointer(towards.rest),
        velocity_values=0 if how.velocity is None else pointer(how.velocity.values),
        velocity_rest=0 if how.velocity is None else pointer(how.velocity.rest),
        seeds=seeds,
        **{"pass": how.first_pass},
        stop=0 if how.stop is None else address(how.stop, np.uint8),
        scores=0 if how.scores is None else pointer(how.scores),
        score_starts=pointer(segments.dense, torch.int64),
    )


def _batches(batches: Batches) -> Any:
    """csrc/program/program.h's; keeps no array alive."""
    native, labels = native_data(batches.data)
    return extension().program.Batches(
        data=native,
        labels=labels,
        order=address(batches.order, np.int64),
        moves=native_moves(batches.moves),
        samples=batches.samples,
        epochs=batches.epochs,
        batch=batches.size,
    )


def native_data(data: Data) -> tuple[Any, int]:
    """Samples as csrc/layers/shapes.h has them, and the address of their labels. Made once for each."""
    return data.derived.of(
        "native", lambda: (native_samples(data.x, data.mean, data.std), address(data.labels, np.int64))
    )


def _arenas(model: Model) -> Any:
    return extension().program.Arenas(
        words=pointer(model.bitmap.words, torch.int64),
        starts=pointer(model.bitmap.segments.starts, torch.int64),
        offsets=pointer(model.bitmap.offsets, torch.int64),
        values=pointer(model.values),
        rest=pointer(model.rest),
        integers=pointer(model.integers, torch.int64),
    )


def trained(native: Any) -> Trained:
    """What came of a training, from csrc/program/program.h's."""
    failed = None if native.failed < 0 else (native.failed, native.failed_loss)
    right = None if native.right_before < 0 else (native.right_before, native.right_after)
    return Trained(native.loss, native.samples, failed, native.stopped, native.finite, right, native.scored)


def _kept(cache: OrderedDict[tuple, Value], key: tuple, make: Callable[[], Value], most: int) -> Value:
    """Return what `cache` has for `key`, made if it is not there; what was not used for long is dropped."""
    if key not in cache:
        cache[key] = make()
        if len(cache) > most:
            cache.popitem(last=False)
    cache.move_to_end(key)
    return cache[key]
