"""Which entries of one weight are stored.

A pattern is a shape and a bitmap of one segment, bit i for entry i of the flattened weight. `csr` and
`transpose` are index lists of the matrix [shape[0], prod(shape[1:])], for users: layers run on the bitmap.
"""

from dataclasses import dataclass
from functools import cached_property
from math import prod

import torch
from torch import Tensor

from sparsefl.kernels import bitmap as bitmaps
from sparsefl.kernels import checks
from sparsefl.kernels.layout import Bitmap, Csr, Transpose


@dataclass(frozen=True, eq=False, repr=False)
class Pattern:
    """Immutable. CSR and transpose are built when first asked for and kept as long as the pattern is.

    >>> import torch, sparse_engine as se
    >>> se.Pattern.from_mask(torch.eye(4, dtype=torch.bool))
    Pattern((4, 4), 4 of 16 stored)
    """

    shape: tuple[int, ...]
    bitmap: Bitmap

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(int(n) for n in self.shape))
        if not self.shape:
            raise ValueError("expected a weight of at least one dimension, got a scalar")
        if self.bitmap.segments.sizes != (prod(self.shape),):
            sizes = self.bitmap.segments.sizes
            raise ValueError(
                f"expected a bitmap of one weight, {prod(self.shape)} entries, got sizes {sizes}"
            )

    @classmethod
    def from_mask(cls, mask: Tensor) -> "Pattern":
        """Return the pattern that stores an entry where `mask` (bool, in the weight's shape) is true."""
        checks.dtype(torch.bool, mask=mask)
        return cls(tuple(mask.shape), bitmaps.from_mask(mask.contiguous()))

    def to(self, device: torch.device | str) -> "Pattern":
        """Return this pattern itself if it is on `device`, else a copy there."""
        bitmap = bitmaps.to(self.bitmap, device)
        return self if bitmap is self.bitmap else Pattern(self.shape, bitmap)

    def mask(self) -> Tensor:
        """Return a new bool tensor in the weight's shape, true where an entry is stored."""
        return bitmaps.to_mask(self.bitmap).view(self.shape)

    @property
    def numel(self) -> int:
        return self.bitmap.segments.numel

    @property
    def nnz(self) -> int:
        return self.bitmap.nnz

    @property
    def density(self) -> float:
        """Stored share; 1 for a weight without entries."""
        return self.nnz / self.numel if self.numel else 1.0

    @cached_property
    def csr(self) -> Csr:
        return bitmaps.csr(self.bitmap, self.shape[0])

    @cached_property
    def transpose(self) -> Transpose:
        return bitmaps.transpose(self.bitmap, self.shape[0])

    def __repr__(self) -> str:
        return f"Pattern({self.shape}, {self.nnz:,} of {self.numel:,} stored)"
