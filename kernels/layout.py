"""The index structures that operations pass around: one argument, not eight.

A model's prunable tensors lie one after another in an arena. Each is a *segment*: `size` entries, and in the
bitmap ceil(size / 64) words, so that every segment starts at a word. Bit i % 64 of word i // 64 is entry i;
the bits that pad a segment's last word are zero. Packed values follow in the order of the bits, without gaps.

    dense     | segment 0 ........ | segment 1 .... |     sum(sizes) entries
    words     | 64 | 64 | 64 | 22. | 64 | 64 | 9... |     one bit per entry, padded to words
    values    | v v v v v v | v v v |                     one float a set bit
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

WORD = 64


class Derived(dict[str, Any]):
    """What backends computed from an object and keep with it. A copy of the object starts without."""

    def of(self, key: str, make: Callable[[], Any]) -> Any:
        """What is kept under `key`; it is made where there is nothing yet."""
        try:
            return self[key]
        except KeyError:
            return self.setdefault(key, make())

    def __reduce__(self) -> tuple[type["Derived"], tuple[()]]:
        return Derived, ()


@dataclass(frozen=True)
class Segments:
    """How many entries each tensor of the arena has, and where it starts."""

    sizes: tuple[int, ...]
    derived: Derived = field(default_factory=Derived, repr=False, compare=False)

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

    @cached_property
    def ragged(self) -> tuple[Tensor, Tensor]:
        """int64: the last word of each segment that has padding, and its bits that are not padding."""
        ragged = [(i, n % WORD) for i, n in enumerate(self.sizes) if n % WORD]
        ends = torch.tensor([int(self.starts[i + 1]) - 1 for i, _ in ragged], dtype=torch.int64)
        return ends, torch.tensor([(1 << bits) - 1 for _, bits in ragged], dtype=torch.int64)

    def padded(self, words: Tensor) -> bool:
        """Whether all bits of these words that pad a segment are 0."""
        ends, keep = (x.to(words.device) for x in self.ragged)
        return not (words[ends] & ~keep).any()


@dataclass(frozen=True, eq=False)
class Bitmap:
    """Which entries are stored. Immutable: make one with `kernels.bitmap`, never write into `words`."""

    words: Tensor  # int64 [num_words]
    segments: Segments
    offsets: Tensor  # int64 [L + 1] on the CPU: first packed value of each segment, and the end
    derived: Derived = field(default_factory=Derived, repr=False)

    @cached_property
    def nnz(self) -> int:
        return sum(self.stored)

    @cached_property
    def stored(self) -> tuple[int, ...]:
        """Stored entries of each segment."""
        bounds = self.offsets.tolist()
        return tuple(hi - lo for lo, hi in zip(bounds, bounds[1:], strict=False))

    @cached_property
    def counts(self) -> Tensor:
        """int64 [L]: `stored` as a tensor on the CPU."""
        return self.offsets.diff()

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
