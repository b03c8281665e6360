"""One client's value as a record: what it is made of (Form), its numbers, and its tensors as a blob.

    blob    counts     uint32: stored entries of every weight, mask by mask
            words      int64: of the masks
            integers   int64: of the models
            values     float32: of the models, then their `rest`

A value is a dataclass, se.Model, se.Bitmap, number, string, None, or a tuple of these. A mask or model that
appears twice is in the blob once: the message of an exact model is that model, a mask that equals another one
is that one. Clients with the same Form differ in their numbers and blobs alone, so there are few Forms.
"""

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
    parts: list[NDArray[Any]]
    length: int  # bytes of the blob


def take(value: Any) -> Record:
    """The record of a value. Nothing is copied yet. TypeError: it holds something else."""
    taker = _Taker()
    tree = taker.tree(value)
    form = Form(tree, len(taker.masks), tuple(taker.masks_of), "".join(taker.kinds))
    counts = np.array([n for mask in taker.masks for n in mask.stored], np.uint32)
    parts = [counts, *(_array(mask.words) for mask in taker.masks)]
    parts += [_array(model.integers) for model in taker.models]
    for model in taker.models:
        parts += [_array(model.values), _array(model.rest)]
    return Record(form, taker.numbers, parts, sum(aligned(part.nbytes) for part in parts))


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
    """Values from records in an arena, of one layout. They lie where the blobs are."""

    def __init__(self, arena: Arena, layout: se.Layout) -> None:
        self._arena, self._layout, self._segments = arena, layout, layout.segments
        self._offsets: dict[bytes, tuple[Tensor, int]] = {}

    def value(self, form: Form, numbers: NDArray[np.int64], place: Place) -> Any:
        """The whole value."""
        return _Made(self, form, numbers, place).value(form.tree)

    def counts(self, form: Form, place: Place, mask: int) -> NDArray[np.uint32]:
        """Stored entries of every weight in a mask."""
        width = 4 * len(self._segments)
        return self._arena.bytes(place, mask * width, width).view(np.uint32)

    def offsets(self, place: Place, mask: int) -> tuple[Tensor, int]:
        """`Bitmap.offsets` of a mask, and how many entries it stores. The same counts share one tensor."""
        width = 4 * len(self._segments)
        key = self._arena.bytes(place, mask * width, width).tobytes()
        found = self._offsets.get(key)
        if found is None:
            counts = np.frombuffer(key, np.uint32).astype(np.int64)
            offsets = torch.from_numpy(np.concatenate([[0], np.cumsum(counts)]))
            if len(self._offsets) >= _MOST:
                self._offsets.clear()
            found = self._offsets[key] = offsets, int(offsets[-1])
        return found


class _Made:
    """The parts of one value, made when they are met."""

    def __init__(self, reader: Reader, form: Form, numbers: NDArray[np.int64], place: Place) -> None:
        self._reader, self._form, self._numbers, self._place = reader, form, numbers, place
        self._masks: dict[int, se.Bitmap] = {}
        self._models: dict[int, se.Model] = {}

    def value(self, tree: Any) -> Any:
        if tree is None:
            return None
        kind, what = tree[0], tree[1]
        if kind == "fields":
            return what(*[self.value(part) for part in tree[2]])
        if kind == "number":
            return number(self._form.numbers[what], self._numbers[what])
        if kind == "model":
            return self._model(what)
        if kind == "mask":
            return self._mask(what)
        return what if kind == "text" else tuple([self.value(part) for part in what])

    def _mask(self, i: int) -> se.Bitmap:
        if i not in self._masks:
            reader, segments = self._reader, self._reader._segments
            start = aligned(4 * len(segments) * self._form.masks) + 8 * segments.num_words * i
            words = reader._arena.words(self._place, start, segments.num_words)
            self._masks[i] = se.Bitmap(words, segments, reader.offsets(self._place, i)[0])
        return self._masks[i]

    def _model(self, i: int) -> se.Model:
        if i not in self._models:
            reader, form, layout = self._reader, self._form, self._reader._layout
            segments, place = reader._segments, self._place
            at = aligned(4 * len(segments) * form.masks) + 8 * segments.num_words * form.masks
            integers = reader._arena.words(place, at + 8 * layout.num_integers * i, layout.num_integers)
            at += 8 * layout.num_integers * len(form.models)
            for mask in form.models[:i]:
                at += aligned(4 * reader.offsets(place, mask)[1]) + aligned(4 * layout.num_floats)
            count = reader.offsets(place, form.models[i])[1]
            values = reader._arena.floats(place, at, count)
            rest = reader._arena.floats(place, at + aligned(4 * count), layout.num_floats)
            self._models[i] = se.Model(layout, self._mask(form.models[i]), values, rest, integers)
        return self._models[i]


def number(kind: str, bits: Any) -> int | float | bool:
    """A number of a record again."""
    if kind == "f":
        return float(np.int64(bits).view(np.float64))
    return bool(bits) if kind == "b" else int(bits)


def owned(value: Any) -> Any:
    """A copy of what a Reader made, in memory of its own."""
    return _Owner().value(value)


class _Owner:
    def __init__(self) -> None:
        self._made: dict[int, Any] = {}

    def value(self, value: Any) -> Any:
        if isinstance(value, se.Model | se.Bitmap):
            if id(value) not in self._made:
                self._made[id(value)] = self._copy(value)
            return self._made[id(value)]
        if type(value) is tuple:
            return tuple(self.value(item) for item in value)
        if is_dataclass(value) and not isinstance(value, type):
            return type(value)(*[self.value(getattr(value, field.name)) for field in fields(value)])
        return value

    def _copy(self, value: se.Model | se.Bitmap) -> Any:
        if isinstance(value, se.Bitmap):
            return se.Bitmap(value.words.clone(), value.segments, value.offsets)
        bitmap = self.value(value.bitmap)
        own = (x.clone() for x in (value.values, value.rest, value.integers))
        return se.Model(value.layout, bitmap, *own)


def _array(tensor: Tensor) -> NDArray[Any]:
    found: NDArray[Any] = tensor.detach().contiguous().numpy()
    return found
