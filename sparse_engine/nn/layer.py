"""What sparse layers share: a pattern, packed values as the parameter `weight`, an optional bias."""

import copy
from collections.abc import Callable
from math import prod
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from sparse_engine.model.pattern import Pattern
from sparse_engine.model.tensor import SparseTensor
from sparse_engine.nn.functional import Watcher
from sparsefl.kernels import bitmap as bitmaps
from sparsefl.kernels.layout import Bitmap, Packed, Segments
from sparsefl.kernels.masked_average import masked_average
from sparsefl.kernels.sparse_conv import Conv

Dense = TypeVar("Dense", nn.Conv2d, nn.Linear)
Sparse = TypeVar("Sparse", bound="SparseLayer")

# What users hang on a layer; a layer that takes its place keeps it.
HOOKS = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_is_full_backward_hook",
)


class SparseLayer(nn.Module):
    """`weight` holds the packed values under the dense weight's name; the buffer `bitmap` says where.

    The geometry is given once; the pattern may be replaced (`set_pattern`), which drops everything derived
    from it.
    """

    weight: nn.Parameter
    bias: nn.Parameter | None
    bitmap: Tensor

    def __init__(self, tensor: SparseTensor, bias: Tensor | None, **geometry: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(tensor.values.detach().clone())
        self.bias = None if bias is None else nn.Parameter(bias.detach().clone())
        self.geometry = geometry
        self.watch: Watcher | None = None
        self._adopt(tensor.pattern)

    def set_pattern(self, pattern: Pattern) -> None:
        """Take another pattern: values are carried over where both store the entry, new entries are 0."""
        if pattern.shape != self.pattern.shape:
            raise ValueError(f"expected a pattern of shape {self.pattern.shape}, got {pattern.shape}")
        values = masked_average(pattern.bitmap, [Packed(self.pattern.bitmap, self.weight.detach())])
        self._replace(pattern, values)

    def set_tensor(self, tensor: SparseTensor) -> None:
        """Take another pattern and its values."""
        if tensor.pattern.shape != self.pattern.shape:
            raise ValueError(f"expected a tensor of shape {self.pattern.shape}, got {tensor.pattern.shape}")
        if torch.equal(tensor.pattern.bitmap.words, self.bitmap):  # plans stay
            with torch.no_grad():
                self.weight.copy_(tensor.values)
        else:
            self._replace(tensor.pattern, tensor.values.clone())

    def tensor(self) -> SparseTensor:
        """Return pattern and values; the values are the parameter's own memory."""
        return SparseTensor(self.pattern, self.weight.detach())

    def to_dense(self) -> nn.Module:
        """Return this layer as a plain torch module, with zeros where nothing is stored."""
        raise NotImplementedError(f"{type(self).__name__}.to_dense")

    def _in_place_of(self: Sparse, dense: nn.Conv2d | nn.Linear) -> Sparse:
        """Take mode, hooks and frozen parameters from the layer that this one replaces; return this one."""
        self.weight.requires_grad_(dense.weight.requires_grad)
        if self.bias is not None and dense.bias is not None:
            self.bias.requires_grad_(dense.bias.requires_grad)
        self.__dict__.update({name: dense.__dict__[name] for name in HOOKS if name in dense.__dict__})
        return self.train(dense.training)

    def _filled(self, dense: Dense) -> Dense:
        dense.weight = nn.Parameter(self.tensor().to_dense().clone(), self.weight.requires_grad)
        if self.bias is not None:
            dense.bias = nn.Parameter(self.bias.detach().clone(), self.bias.requires_grad)
        dense.__dict__.update({name: self.__dict__[name] for name in HOOKS})
        return dense.train(self.training)

    def _replace(self, pattern: Pattern, values: Tensor) -> None:
        self.weight.data = values
        self.weight.grad = None
        self._adopt(pattern)

    def _adopt(self, pattern: Pattern) -> None:
        self.pattern = pattern
        self.register_buffer("bitmap", pattern.bitmap.words)
        shape = (*pattern.shape, 1, 1)[:4]
        self.conv = Conv(pattern.bitmap, shape[0], shape[1], (shape[2], shape[3]), **self.geometry)

    def _apply(self: Sparse, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Sparse:
        """What `.to`, `.cuda` and `.cpu` call: the pattern goes where the buffer `bitmap` went."""
        super()._apply(fn, recurse)
        if self.bitmap.device.type != "meta" and self.bitmap.device != self.pattern.bitmap.words.device:
            old = self.pattern.bitmap
            moved = Bitmap(self.bitmap, old.segments, old.offsets)
            self._adopt(Pattern(self.pattern.shape, moved))
        return self

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, metadata: Any, strict: bool, *lists: Any
    ) -> None:
        """Adopt the pattern that a state dict brings, before its values are copied.

        A dense network's is accepted if it has zeros wherever this layer stores nothing.
        """
        words, values = (state_dict.get(prefix + name) for name in ("bitmap", "weight"))
        if isinstance(words, Tensor) and isinstance(values, Tensor) and not torch.equal(words, self.bitmap):
            bitmap = _checked(words, self.pattern.bitmap.segments, values, prefix)
            self._replace(Pattern(self.pattern.shape, bitmap), torch.empty_like(values))
        elif words is None and isinstance(values, Tensor) and tuple(values.shape) == self.pattern.shape:
            tensor = SparseTensor.from_dense(values.detach(), self.pattern)
            if torch.equal(tensor.to_dense(), values.to(tensor.values.dtype)):
                packed = {prefix + "weight": tensor.values, prefix + "bitmap": self.bitmap}
                state_dict = {**state_dict, **packed}
            else:  # torch's own words would be about a size
                _, _, errors = lists
                errors.append(
                    f"expected zeros in {prefix}weight where this sparse layer stores nothing, got a dense "
                    "weight that would lose entries: load it into the dense network, then sparsify that one"
                )
                return
        super()._load_from_state_dict(state_dict, prefix, metadata, strict, *lists)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is derived. The buffer `bitmap` and the shape are the pattern."""
        kept = {k: v for k, v in self.__dict__.items() if k not in ("pattern", "conv", "watch")}
        return kept | {"shape": self.pattern.shape}

    def __setstate__(self, state: dict[str, Any]) -> None:
        shape = state.pop("shape")
        super().__setstate__(state)
        self.watch = None
        words = self._buffers["bitmap"]
        assert words is not None  # `_adopt` registers it
        self._adopt(Pattern(shape, bitmaps.make(words, Segments((prod(shape),)))))

    def __deepcopy__(self: Sparse, memo: dict[int, Any]) -> Sparse:
        """The pattern is immutable and shared; what is derived from it is not copied."""
        memo[id(self.bitmap)] = self.bitmap
        twin = type(self).__new__(type(self))
        memo[id(self)] = twin
        state = copy.deepcopy(self.__getstate__(), memo)
        del state["shape"]
        nn.Module.__setstate__(twin, state)
        twin.watch = None
        twin._adopt(self.pattern)
        return twin

    def extra_repr(self) -> str:
        shape = tuple(self.pattern.shape)
        return f"{shape}, {self.pattern.nnz:,} stored (density {self.pattern.density:.3f}), {self.geometry}"


def _checked(words: Tensor, segments: Segments, values: Tensor, prefix: str) -> Bitmap:
    bitmap = bitmaps.make(words.clone(), segments)
    if bitmap.nnz != values.numel():
        raise ValueError(f"expected {bitmap.nnz} values for {prefix}bitmap, got {values.numel()}")
    return bitmap
