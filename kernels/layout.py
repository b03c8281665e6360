"""The index structures that operations pass around: one argument, not eight.

A model's prunable tensors lie one after another in an arena. Each is a *segment*: `size` entries, and in the
bitmap ceil(size / 64) words, so that every segment starts at a word. Bit i % 64 of word i // 64 is entry i;
the bits that pad a segment's last word are zero. Packed values follow in the order of the bits, without gaps.

    dense     | segment 0 ........ | segment 1 .... |     sum(sizes) entries
    words     | 64 | 64 | 64 | 22. | 64 | 64 | 9... |     one bit an entry, padded to words
    values    | v v v v v v | v v v |                     one float a set bit
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

WORD = 64


@dataclass(frozen=True)
class Segments:
    """How many entries each tensor of the arena has, and where it starts."""

    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", tuple(int(n) for n in self.sizes))
        if any(n < 0 for n in self.sizes):
            raise ValueError(f"expected sizes from 0, got {self.sizes}")

    def __len__(self) -> int:
        return len(self.sizes)

    @cached_property
    def numel(self) -> int:
        return sum(self.sizes)

    @cached_property
    def starts(self) -> Tensor:
        """int64 [L + 1]: first word of each segment, and the end."""
        return _running([-(-n // WORD) for n in self.sizes])

    @cached_property
    def dense(self) -> Tensor:
        """int64 [L + 1]: first entry of each segment in the concatenated dense form, and the end."""
        return _running(self.sizes)

    @cached_property
    def num_words(self) -> int:
        return int(self.starts[-1])


@dataclass(frozen=True, eq=False)
class Bitmap:
    """Which entries are stored. Immutable: make one with `kernels.bitmap`, never write into `words`."""

    words: Tensor  # int64 [num_words]
    segments: Segments
    offsets: Tensor  # int64 [L + 1] on the CPU: first packed value of each segment, and the end
    _derived: dict[str, Any] = field(default_factory=dict, repr=False)

    @cached_property
    def nnz(self) -> int:
        return int(self.offsets[-1])

    @property
    def counts(self) -> Tensor:
        """int64 [L]: stored entries of each segment."""
        return self.offsets.diff()

    def derived(self, key: str, make: Callable[["Bitmap"], Any]) -> Any:
        """What a backend computed from this bitmap and keeps with it (a rank directory, a device copy)."""
        if key not in self._derived:
            self._derived[key] = make(self)
        return self._derived[key]

    def segment(self, i: int) -> "Bitmap":
        """Segment i alone; shares memory."""
        lo, hi = int(self.segments.starts[i]), int(self.segments.starts[i + 1])
        return Bitmap(
            self.words[lo:hi], Segments((self.segments.sizes[i],)), self.offsets[i : i + 2] - self.offsets[i]
        )


class Packed(NamedTuple):
    """Values and the bitmap that says where they belong: a model, a message, a layer."""

    bitmap: Bitmap
    values: Tensor


class Csr(NamedTuple):
    """Rows of a pattern: `columns[pointers[r] : pointers[r + 1]]`, ascending, int32. Values: packed ones."""

    pointers: Tensor
    columns: Tensor


class Transpose(NamedTuple):
    """Columns of a pattern: column c has `rows[pointers[c] : ...]`; `order` finds their packed values."""

    pointers: Tensor
    rows: Tensor
    order: Tensor


def _running(counts: Sequence[int]) -> Tensor:
    return torch.tensor([0, *counts], dtype=torch.int64).cumsum(0)
