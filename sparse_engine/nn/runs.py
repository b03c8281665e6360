"""On which kernel every sparse layer runs, and why: asked of the present plan, for a batch of a size."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from sparse_engine.choice import plan, products
from sparse_engine.nn.layer import SparseLayer
from sparse_engine.nn.linear import SparseLinear
from sparsefl.kernels import native, registry
from sparsefl.kernels.sparse_conv import DIRECTIONS, joined, split

MEASURED, RULE, TORCH = "measured", "rule", "torch is faster"


class Runs(NamedTuple):
    """A layer's kernel per direction, with its instruction set ("sparse avx2"), and the reason of each."""

    name: str
    image: tuple[int, int, int]  # height, width, batch
    kernels: tuple[str, str, str]  # of sparse_conv.DIRECTIONS
    why: tuple[str, str, str]

    def __str__(self) -> str:
        each = [f"{kernel} ({why})" for kernel, why in zip(self.kernels, self.why, strict=True)]
        told = [f"{d.replace('_', ' ')} {one}" for d, one in zip(DIRECTIONS, each, strict=True)]
        if len(set(each)) == 1:
            told = each[:1]
        return f"{self.name or '(whole)'}: {', '.join(told)}"


def runs(net: nn.Module, sample: Any, batch: int, bf16: bool = False) -> list[Runs]:
    """Return what every sparse layer runs on layer by layer, which a pass over `sample` meets; `sample` has a
    batch of one. A program has no torch: its own kernels are in `program.profile`."""
    if registry.backend_for("cpu") != "cpu" or not native.built():
        return []
    shapes = _inputs(net, sample)
    return [
        _of(name, layer, shapes[name], batch, bf16)
        for name, layer in net.named_modules()
        if isinstance(layer, SparseLayer) and name in shapes
    ]


def _inputs(net: nn.Module, sample: Any) -> Mapping[str, torch.Size]:
    """The shape of what each sparse layer is given."""
    seen: dict[str, torch.Size] = {}

    def look(name: str) -> Any:
        return lambda module, given: seen.__setitem__(name, given[0].shape)

    hooks = [
        layer.register_forward_pre_hook(look(name))
        for name, layer in net.named_modules()
        if isinstance(layer, SparseLayer)
    ]
    training = net.training
    try:
        with torch.no_grad():
            net.eval()(*(sample if isinstance(sample, tuple) else (sample,)))
    finally:
        net.train(training)
        for hook in hooks:
            hook.remove()
    return seen


def _of(name: str, layer: SparseLayer, given: torch.Size, batch: int, bf16: bool) -> Runs:
    linear = isinstance(layer, SparseLinear)
    rows = batch * given[:-1].numel()  # given has a batch of one
    image = (1, 1, rows) if linear else (given[-2], given[-1], batch)
    if linear and not bf16 and products.dense_pays(layer.conv, rows):
        return Runs(name, image, ("torch",) * 3, (TORCH,) * 3)
    found = [plan.current().choice(layer.conv, direction, image, bf16) for direction in DIRECTIONS]
    kernels = tuple(_named(choice.kernel) for choice in found)
    why = tuple(MEASURED if c.measured else TORCH if c.kernel == "torch" else RULE for c in found)
    return Runs(name, image, kernels, why)  # type: ignore[arg-type]


def _named(kernel: str) -> str:
    kernel, isa = split(kernel)
    return kernel if kernel == "torch" else joined(kernel, isa or native.isa()).replace(":", " ")
