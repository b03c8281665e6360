"""What sparse layers share: a pattern, packed values as the parameter `weight`, an optional bias."""

from collections.abc import Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from kernels import bitmap as bitmaps
from kernels.layout import Bitmap, Packed, Segments
from kernels.masked_average import masked_average
from kernels.sparse_conv import Conv
from sparse_engine.functional import Watcher
from sparse_engine.pattern import Pattern
from sparse_engine.tensor import SparseTensor

Dense = TypeVar("Dense", nn.Conv2d, nn.Linear)


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
        """Another pattern: values are carried over where both store the entry, new entries are 0."""
        if pattern.shape != self.pattern.shape:
            raise ValueError(f"expected a pattern of shape {self.pattern.shape}, got {pattern.shape}")
        values = masked_average(pattern.bitmap, [Packed(self.pattern.bitmap, self.weight.detach())])
        self._replace(pattern, values)

    def set_tensor(self, tensor: SparseTensor) -> None:
        """Another pattern and its values."""
        if tensor.pattern.shape != self.pattern.shape:
            raise ValueError(f"expected a tensor of shape {self.pattern.shape}, got {tensor.pattern.shape}")
        if torch.equal(tensor.pattern.bitmap.words, self.bitmap):  # plans stay
            with torch.no_grad():
                self.weight.copy_(tensor.values)
        else:
            self._replace(tensor.pattern, tensor.values.clone())

    def tensor(self) -> SparseTensor:
        """Pattern and values; the values are the parameter's own memory."""
        return SparseTensor(self.pattern, self.weight.detach())

    def to_dense(self) -> nn.Module:
        """The same layer in plain torch, zeros where nothing is stored."""
        raise NotImplementedError(f"{type(self).__name__}.to_dense")

    def _filled(self, dense: Dense) -> Dense:
        dense.weight.data = self.tensor().to_dense().clone()
        if self.bias is not None:
            assert dense.bias is not None
            dense.bias.data = self.bias.detach().clone()
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

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *rest: Any) -> None:
        """A state dict brings its own pattern: adopt it before the values are copied."""
        words, values = (state_dict.get(prefix + name) for name in ("bitmap", "weight"))
        if isinstance(words, Tensor) and isinstance(values, Tensor) and not torch.equal(words, self.bitmap):
            bitmap = _checked(words, self.pattern.bitmap.segments, values, prefix)
            self._replace(Pattern(self.pattern.shape, bitmap), torch.empty_like(values))
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def __deepcopy__(self, memo: dict) -> "SparseLayer":
        """Derived structures are not copied: the copy makes its own when it runs."""
        copy = type(self).__new__(type(self))
        nn.Module.__init__(copy)
        memo[id(self)] = copy
        copy.geometry, copy.watch, copy.training = dict(self.geometry), None, self.training
        copy.weight = nn.Parameter(self.weight.detach().clone(), self.weight.requires_grad)
        copy.bias = (
            None if self.bias is None else nn.Parameter(self.bias.detach().clone(), self.bias.requires_grad)
        )
        copy._adopt(self.pattern)
        return copy

    def extra_repr(self) -> str:
        shape = tuple(self.pattern.shape)
        return f"{shape}, {self.pattern.nnz:,} stored (density {self.pattern.density:.3f}), {self.geometry}"


def _checked(words: Tensor, segments: Segments, values: Tensor, prefix: str) -> Bitmap:
    bitmap = bitmaps.make(words.clone(), segments)
    if bitmap.nnz != values.numel():
        raise ValueError(f"expected {bitmap.nnz} values for {prefix}bitmap, got {values.numel()}")
    return bitmap
