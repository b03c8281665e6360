"""A model at rest: what a client keeps between turns, what a checkpoint holds, what a message is made from.

    bitmap     1 bit per prunable weight, all weights in one arena, each padded to whole 64-bit words
    values     float32, packed in the order of the bits
    rest       float32, flat: biases, norm parameters, float buffers, weights exempt from pruning
    integers   int64, flat: integer and bool buffers (BatchNorm's num_batches_tracked), exact at any size

A Layout names the parts and is one object for all clients of a network. `sparse_engine.nn.bridge` makes a
model from an nn.Module and writes it back.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from sparse_engine.model.pattern import Pattern
from sparse_engine.model.tensor import SparseTensor
from sparsefl.kernels import bitmap as bitmaps
from sparsefl.kernels import checks, devices
from sparsefl.kernels.layout import Bitmap, Derived, Packed, Segments
from sparsefl.kernels.masked_average import masked_average
from sparsefl.kernels.pack import pack

_FLOATS = (torch.float32, torch.float16, torch.bfloat16)
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)


class Entry(NamedTuple):
    """One tensor of `rest` or `integers`; the dtype is the module's own."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class Layout:
    """Names and shapes of the prunable weights, in the order of the arena, and of everything else."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    rest: tuple[Entry, ...] = ()

    def __post_init__(self) -> None:
        every = [*self.names, *(entry.name for entry in self.rest)]
        if len(self.names) != len(self.shapes) or len(set(every)) != len(every):
            raise ValueError(f"expected one shape a name and no name twice, got {every} and {self.shapes}")
        strange = {entry.name: entry.dtype for entry in self.rest if entry.dtype not in _FLOATS + _INTEGERS}
        if strange:
            raise ValueError(f"expected dtypes that float32 or int64 hold exactly, got {strange}")

    @cached_property
    def segments(self) -> Segments:
        return Segments(tuple(prod(shape) for shape in self.shapes))

    @cached_property
    def floats(self) -> tuple[Entry, ...]:
        return tuple(entry for entry in self.rest if entry.dtype in _FLOATS)

    @cached_property
    def integers(self) -> tuple[Entry, ...]:
        return tuple(entry for entry in self.rest if entry.dtype in _INTEGERS)

    @cached_property
    def float_sizes(self) -> list[int]:
        """How many numbers each of `floats` has, in the order of `Model.rest`."""
        return [prod(entry.shape) for entry in self.floats]

    @cached_property
    def float_runs(self) -> list[int]:
        """Where each of `floats` begins and ends in `Model.rest`: begin, end, begin, end, ..."""
        ends = list(accumulate(self.float_sizes, initial=0))
        return [at for run in pairwise(ends) for at in run]

    @cached_property
    def num_floats(self) -> int:
        """How many numbers `floats` have."""
        return sum(self.float_sizes)

    @cached_property
    def num_integers(self) -> int:
        """How many numbers `integers` have."""
        return _size(self.integers)

    @cached_property
    def _index(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.names)}

    def index(self, name: str) -> int:
        """Return the number of a prunable weight in the arena."""
        if name not in self._index:
            raise ValueError(f"expected a prunable weight out of {list(self.names)}, got {name!r}")
        return self._index[name]

    def bitmap(self, words: Tensor) -> Bitmap:
        """Return the checked pattern with these words; the caller must not write into them afterwards."""
        return bitmaps.make(words, self.segments)

    def bitmap_of(self, masks: Mapping[str, Tensor]) -> Bitmap:
        """Return the pattern of `masks`: one bool tensor per weight, in the weight's shape."""
        shapes = {name: tuple(m.shape) for name, m in masks.items()}
        if shapes != dict(zip(self.names, self.shapes, strict=True)):
            raise ValueError(
                f"expected masks of {dict(zip(self.names, self.shapes, strict=True))}, got {shapes}"
            )
        flat = [masks[name].reshape(-1) for name in self.names]
        return bitmaps.from_mask(torch.cat(flat) if flat else torch.empty(0, dtype=torch.bool), self.segments)

    def differences(self, other: "Layout") -> list[str]:
        """Return how `other` differs, one line per tensor; an empty list when the two are equal."""
        if self is other or self == other:
            return []
        ours, theirs = self._described(), other._described()
        named = dict.fromkeys([*ours, *theirs])
        lines = [
            f"{name}: expected {ours.get(name, 'no such tensor')}, got {theirs.get(name, 'none')}"
            for name in named
            if ours.get(name) != theirs.get(name)
        ]
        return lines or [f"expected the order {list(ours)}, got {list(theirs)}"]

    def _described(self) -> dict[str, str]:
        prunable = {n: f"prunable {s}" for n, s in zip(self.names, self.shapes, strict=True)}
        return prunable | {e.name: f"{e.dtype} {e.shape}".removeprefix("torch.") for e in self.rest}


@dataclass(frozen=True, eq=False, repr=False)
class Model:
    """One model. Its pattern never changes; training may write into the other three tensors.

    >>> import torch, sparse_engine as se
    >>> model = se.compress(se.sparsify(torch.nn.Linear(20, 50), density=0.1))
    >>> model
    Model(1 weights, 100 of 1,000 stored (density 0.1000), 1 other tensors, 0.001 MB)
    >>> model.tensor("weight").to_dense().shape
    torch.Size([50, 20])
    """

    layout: Layout
    bitmap: Bitmap
    values: Tensor
    rest: Tensor
    integers: Tensor

    def __post_init__(self) -> None:
        if not self._fits():
            self._refuse()

    def _fits(self) -> bool:
        """All that `_refuse` checks, fast: a client's turn makes several models."""
        layout, bitmap, values, rest, integers = (
            self.layout, self.bitmap, self.values, self.rest, self.integers
        )  # fmt: skip
        device = bitmap.words.device
        return (
            (bitmap.segments is layout.segments or bitmap.segments.sizes == layout.segments.sizes)
            and values.shape == (bitmap.nnz,)
            and rest.shape == (layout.num_floats,)
            and values.dtype == rest.dtype == torch.float32
            and integers.dtype == torch.int64
            and integers.numel() == layout.num_integers
            and values.is_contiguous()
            and rest.is_contiguous()
            and integers.is_contiguous()
            and values.device == device
            and rest.device == device
            and integers.device == device
        )

    def _refuse(self) -> None:
        sizes = self.layout.segments.sizes
        if self.bitmap.segments.sizes != sizes:
            raise ValueError(f"expected a bitmap of sizes {sizes}, got {self.bitmap.segments.sizes}")
        checks.flat(values=self.values, rest=self.rest)
        checks.dtype(torch.float32, values=self.values, rest=self.rest)
        checks.dtype(torch.int64, integers=self.integers)
        checks.contiguous(integers=self.integers)
        words = self.bitmap.words
        checks.same_device(bitmap=words, values=self.values, rest=self.rest, integers=self.integers)
        checks.length(self.bitmap.nnz, "packed values in the bitmap", values=self.values)
        checks.length(self.layout.num_floats, "entries of float tensors", rest=self.rest)
        checks.length(self.layout.num_integers, "entries of integer tensors", integers=self.integers)

    @cached_property
    def derived(self) -> Derived:
        """What backends computed from this object and keep with it."""
        return Derived()

    @property
    def packed(self) -> Packed:
        """Pattern and values, as the kernels take them."""
        return Packed(self.bitmap, self.values)

    @property
    def density(self) -> float:
        """Stored share of the prunable weights; 1 if there are none."""
        total = self.bitmap.segments.numel
        return self.bitmap.nnz / total if total else 1.0

    @property
    def nbytes(self) -> int:
        """Bytes of the four tensors."""
        return sum(x.nbytes for x in (self.bitmap.words, self.values, self.rest, self.integers))

    def pattern(self, name: str) -> Pattern:
        """Return the pattern of one weight, a new object per call: keep it if you need its CSR twice."""
        i = self.layout.index(name)
        return Pattern(self.layout.shapes[i], self.bitmap.segment(i))

    def tensor(self, name: str) -> SparseTensor:
        """Return one weight; its values are a view of this model's."""
        lo, hi = self.bitmap.offsets[self.layout.index(name) :][:2].tolist()
        return SparseTensor(self.pattern(name), self.values[lo:hi])

    def rest_tensors(self) -> dict[str, Tensor]:
        """Return everything else by name, in its shape: views of `rest` (float32) and `integers` (int64)."""
        return _views(self.rest, self.layout.floats) | _views(self.integers, self.layout.integers)

    def tensors(self) -> dict[str, Tensor]:
        """Return the four tensors themselves, by name: what a checkpoint writes."""
        return {
            "bitmap": self.bitmap.words,
            "values": self.values,
            "rest": self.rest,
            "integers": self.integers,
        }

    @classmethod
    def from_tensors(cls, layout: Layout, tensors: Mapping[str, Tensor]) -> "Model":
        """Return the checked model of what `tensors()` returned; it keeps these tensors, without a copy."""
        wanted = ("bitmap", "values", "rest", "integers")
        if sorted(tensors) != sorted(wanted):
            raise ValueError(f"expected the tensors {list(wanted)}, got {list(tensors)}")
        return cls(layout, layout.bitmap(tensors["bitmap"]), *(tensors[name] for name in wanted[1:]))

    def with_values(self, values: Tensor) -> "Model":
        """Return this model with other values on the same pattern. Everything else is shared."""
        return Model(self.layout, self.bitmap, values, self.rest, self.integers)

    def with_pattern(self, bitmap: Bitmap) -> "Model":
        """Return this model on another pattern: values where both store the entry, 0 where it is new."""
        full = self.bitmap.nnz == self.bitmap.segments.numel
        values = pack(self.values, bitmap) if full else masked_average(bitmap, [self.packed])
        return Model(self.layout, bitmap, values, self.rest, self.integers)

    def to(self, device: torch.device | str) -> "Model":
        """Return this model itself if it is on `device`, else a copy there. "cuda" is the current card."""
        device = devices.numbered(device)
        if self.values.device == device:
            return self
        bitmap = bitmaps.to(self.bitmap, device)
        return Model(self.layout, bitmap, *(x.to(device) for x in (self.values, self.rest, self.integers)))

    def clone(self) -> "Model":
        """Return a copy; the pattern, which nobody writes, is shared."""
        own = (x.clone() for x in (self.values, self.rest, self.integers))
        return Model(self.layout, self.bitmap, *own)

    def __repr__(self) -> str:
        stored = f"{self.bitmap.nnz:,} of {self.bitmap.segments.numel:,} stored (density {self.density:.4f})"
        tensors = f"{len(self.layout.names)} weights, {stored}, {len(self.layout.rest)} other tensors"
        return f"Model({tensors}, {self.nbytes / 1e6:.3f} MB)"


def _size(entries: Iterable[Entry]) -> int:
    return sum(prod(entry.shape) for entry in entries)


def _views(flat: Tensor, entries: tuple[Entry, ...]) -> dict[str, Tensor]:
    parts = flat.split([prod(entry.shape) for entry in entries]) if entries else ()
    return {entry.name: part.view(entry.shape) for entry, part in zip(entries, parts, strict=True)}
