"""One sparse weight: a pattern and its values, packed in the order of the pattern's bits."""

from dataclasses import dataclass

import torch
from torch import Tensor

from sparse_engine.model.pattern import Pattern
from sparsefl.kernels import checks
from sparsefl.kernels.layout import Packed
from sparsefl.kernels.pack import pack, unpack


@dataclass(frozen=True, eq=False, repr=False)
class SparseTensor:
    """The values are shared, not copied: writing into them writes into whatever they were taken from.

    >>> import torch, sparse_engine as se
    >>> w = torch.arange(4.0)
    >>> se.SparseTensor.from_dense(w, w > 1).values
    tensor([2., 3.])
    """

    pattern: Pattern
    values: Tensor

    def __post_init__(self) -> None:
        checks.flat(values=self.values)
        checks.same_device(values=self.values, bitmap=self.pattern.bitmap.words)
        checks.length(self.pattern.nnz, f"values for {self.pattern}", values=self.values)

    @classmethod
    def from_dense(cls, w: Tensor, mask: Tensor | Pattern) -> "SparseTensor":
        """Return a copy of what `w` holds on `mask`; the other entries of `w` are dropped."""
        pattern = mask if isinstance(mask, Pattern) else Pattern.from_mask(mask)
        if tuple(w.shape) != pattern.shape:
            raise ValueError(f"expected one shape, got {{'w': {tuple(w.shape)}, 'mask': {pattern.shape}}}")
        return cls(pattern, pack(w.detach().reshape(-1), pattern.bitmap))

    def to(self, device: torch.device | str) -> "SparseTensor":
        """Return this tensor itself if it is on `device`, else a copy there."""
        pattern = self.pattern.to(device)
        moved = self.values.to(pattern.bitmap.words.device)
        return self if pattern is self.pattern else SparseTensor(pattern, moved)

    def to_dense(self) -> Tensor:
        """Return the dense weight in its shape, 0 where nothing is stored."""
        return unpack(self.values.detach(), self.pattern.bitmap).view(self.pattern.shape)

    @property
    def packed(self) -> Packed:
        """Pattern and values, as the kernels take them."""
        return Packed(self.pattern.bitmap, self.values)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.pattern.shape

    def __repr__(self) -> str:
        stored = f"{self.pattern.nnz:,} of {self.pattern.numel:,} stored"
        return f"SparseTensor({self.shape}, {stored}, {self.values.dtype})"
