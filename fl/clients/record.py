"""One client's value as a record: what it is made of (Form), its numbers, what its masks store, and bytes.

    bytes   words      int64: of the masks
            integers   int64: of the models
            values     float32: of the models, then their `rest`; with `half`, values as bfloat16

A value is a dataclass, se.Model, se.Bitmap, number, string, None, or a tuple of these. A mask or model that
appears twice is there once: the message of an exact model is that model, a mask that equals another one
is that one. Clients with the same Form differ in the rest alone, so there are few Forms.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import sparse_engine as se
from fl.clients.arena import Arena, Place, aligned

_FIELDS: dict[type, tuple[str, ...]] = {}
_KNOWN = "models, masks, numbers, strings, tuples or dataclasses"
_MOST = 1 << 12  # counts of masks that are kept ready


@dataclass(frozen=True)
class Form:
    """tree     nested: (kind, ...) of every part, see `_Taker`
    masks    how many
    models   the mask of each
    numbers  "i" (integer), "f" (float) or "b" (bool) of each"""

    tree: Any
    masks: int
    models: tuple[int, ...]
    numbers: str


class Record(NamedTuple):
    form: Form
    numbers: list[int]  # 64 bits each
    counts: list[int]  # stored entries of every weight, mask by mask
    parts: list[NDArray[Any]]
    length: int  # bytes of these, each from a multiple of 8 on


def take(value: Any, half: bool = False) -> Record:
    """The record of a value; `half`: models' values are rounded to bfloat16, half as long. Otherwise nothing
    is copied yet. TypeError: it holds something else."""
    taker = _Taker()
    tree = taker.tree(value)
    form = Form(tree, len(taker.masks), tuple(taker.masks_of), "".join(taker.kinds))
    counts = [n for mask in taker.masks for n in mask.stored]
    parts = [_array(mask.words) for mask in taker.masks]
    parts += [_array(model.integers) for model in taker.models]
    for model in taker.models:
        parts += [_array(_halved(model.values) if half else model.values), _array(model.rest)]
    return Record(form, taker.numbers, counts, parts, sum(aligned(part.nbytes) for part in parts))


class _Taker:
    """Walks a value. Masks and models get numbers as they are met."""

    def __init__(self) -> None:
        self.masks: list[se.Bitmap] = []
        self.models: list[se.Model] = []
        self.masks_of: list[int] = []
        self.numbers: list[int] = []
        self.kinds: list[str] = []

    def tree(self, value: Any) -> Any:
        if value is None:
            return None
        kind = type(value)
        if kind in _FIELDS:
            return ("fields", kind, tuple([self.tree(getattr(value, name)) for name in _FIELDS[kind]]))
        if kind is float:
            return self._number("f", int(np.float64(value).view(np.int64)))
        if kind is bool or kind is int:
            return self._number("b" if kind is bool else "i", int(value))
        if kind is str:
            return ("text", value)
        if kind is se.Model:
            return ("model", self._model(value))
        if kind is se.Bitmap:
            return ("mask", self._mask(value))
        if kind is tuple:
            return ("items", tuple([self.tree(item) for item in value]))
        if is_dataclass(value) and not isinstance(value, type):
            _FIELDS[kind] = tuple(field.name for field in fields(value))
            return self.tree(value)
        raise TypeError(f"expected {_KNOWN}, got {kind.__name__}")

    def _number(self, kind: str, bits: int) -> Any:
        self.kinds.append(kind)
        self.numbers.append(bits)
        return ("number", len(self.kinds) - 1)

    def _model(self, model: se.Model) -> int:
        for i, known in enumerate(self.models):
            if known is model:
                return i
        self.masks_of.append(self._mask(model.bitmap))
        self.models.append(model)
        return len(self.models) - 1

    def _mask(self, mask: se.Bitmap) -> int:
        for i, known in enumerate(self.masks):
            if known is mask or (known.stored == mask.stored and torch.equal(known.words, mask.words)):
                return i
        self.masks.append(mask)
        return len(self.masks) - 1


class Reader:
    """Values from records in an arena, of one layout. They lie where the records are, and hold them."""

    def __init__(self, arena: Arena, layout: se.Layout, half: bool = False) -> None:
        """`half`: values were taken so (`take`)."""
        self._arena, self.layout, self.half = arena, layout, half
        self._offsets: dict[bytes, tuple[Tensor, int]] = {}

    def value(
        self,
        form: Form,
        numbers: NDArray[np.int64],
        counts: NDArray[np.uint32],
        place: Place,
        path: Sequence[str] = (),
    ) -> Any:
        """The whole value, or the part of it at `path`."""
        made = _Made(self, form, numbers, counts, self._arena.look(place))
        return made.value(part(form, path))

    def offsets(self, counts: bytes) -> tuple[Tensor, int]:
        """`Bitmap.offsets` of a mask, and how many entries it stores. The same counts share one tensor."""
        found = self._offsets.get(counts)
        if found is None:
            ends = np.cumsum(np.frombuffer(counts, np.uint32), dtype=np.int64)
            offsets = torch.from_numpy(np.concatenate([[0], ends]))
            if len(self._offsets) >= _MOST:
                self._offsets.clear()
            found = self._offsets[counts] = offsets, int(offsets[-1])
        return found


class _Made:
    """The parts of one value, made when they are met."""

    def __init__(
        self,
        reader: Reader,
        form: Form,
        numbers: NDArray[np.int64],
        counts: NDArray[np.uint32],
        record: NDArray[np.int64],
    ) -> None:
        self._reader, self._form, self._numbers, self._counts = reader, form, numbers, counts
        self._words = torch.from_numpy(record)
        self._masks: dict[int, se.Bitmap] = {}
        self._models: dict[int, se.Model] = {}

    def value(self, tree: Any) -> Any:
        if tree is None:
            return None
        kind, what = tree[0], tree[1]
        if kind == "fields":
            return what(*[self.value(inner) for inner in tree[2]])
        if kind == "number":
            return number(self._form.numbers[what], self._numbers[what])
        if kind == "model":
            return self._model(what)
        if kind == "mask":
            return self._mask(what)
        return what if kind == "text" else tuple([self.value(inner) for inner in what])

    def _offsets(self, i: int) -> tuple[Tensor, int]:
        width = len(self._reader.layout.segments)
        return self._reader.offsets(self._counts[i * width : (i + 1) * width].tobytes())

    def _mask(self, i: int) -> se.Bitmap:
        if i not in self._masks:
            segments = self._reader.layout.segments
            at = segments.num_words * i
            words = self._words[at : at + segments.num_words]
            self._masks[i] = se.Bitmap(words, segments, self._offsets(i)[0])
        return self._masks[i]

    def _model(self, i: int) -> se.Model:
        if i not in self._models:
            form, layout, wide = self._form, self._reader.layout, 2 if self._reader.half else 4
            at = layout.segments.num_words * form.masks
            integers = self._words[at + layout.num_integers * i :][: layout.num_integers]
            at += layout.num_integers * len(form.models)
            rest_words = aligned(4 * layout.num_floats) // 8
            for mask in form.models[:i]:
                at += aligned(wide * self._offsets(mask)[1]) // 8 + rest_words
            count = self._offsets(form.models[i])[1]
            after = at + aligned(wide * count) // 8
            values = self._words[at:after].view(torch.bfloat16 if self._reader.half else torch.float32)
            rest = self._words[after : after + rest_words].view(torch.float32)
            self._models[i] = se.Model(
                layout,
                self._mask(form.models[i]),
                values[:count].float(),  # itself, where it is that already
                rest[: layout.num_floats],
                integers,
            )
        return self._models[i]


def part(form: Form, path: Sequence[str]) -> Any:
    """What the tree of a form has at a path of fields; None where there is nothing."""
    tree = form.tree
    for name in path:
        if tree is None:
            return None
        _, kind, parts = tree
        tree = parts[_FIELDS[kind].index(name)]
    return tree


def number(kind: str, bits: Any) -> int | float | bool:
    """A number of a record again."""
    if kind == "f":
        return float(np.int64(bits).view(np.float64))
    return bool(bits) if kind == "b" else int(bits)


def _halved(values: Tensor) -> Tensor:
    return values.bfloat16().view(torch.int16)


def _array(tensor: Tensor) -> NDArray[Any]:
    found: NDArray[Any] = tensor.detach().contiguous().numpy()
    return found
