"""A message: a Model as bytes, close to its entropy in length, and decoded as untrusted input.

    at   bytes
     0     4   magic "SPFL"
     4     2   version, 1
     6     1   mask codec:   0 bitmap   1 entropy   2 difference   3 known
     7     1   value codec:  0 fp32     1 bf16      2 fp16         3 q8     4 q16;    + 128: packed
     8     8   checksum: XXH64 of bytes 16 to 63, then of each section; the seed of the first is bytes 0 to 7,
               that of every other the checksum before it
    16     8   fingerprint of the model: names, shapes and dtypes
    24     8   XXH64 of the words of the mask that the receiver has to know; 0 where it needs none
    32     4   sender
    36     4   round
    40    24   bytes of the three sections
    64     .   mask      which entries are stored (sparse_engine/wire/masks.py)
     .     .   values    the stored entries, in order, then weights exempt from pruning (float tensors of more
                         than one dimension), in the value codec, packed or not (sparse_engine/wire/values.py)
     .     .   rest      the other float tensors as float32; integers as int64

Little-endian, nothing between, nothing after. A message has one form: what `decode` accepts, `encode` writes
(but for the scales of q8 and q16). A receiver takes all sizes from its own model and compares, before it
allocates anything; so what a message costs is bounded by the receiver's model, whatever the sender claims.
The checksum finds damage; it does not say who wrote a message.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import blake2b
from itertools import accumulate
from math import prod
from struct import Struct
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sparse_engine.model.model import Layout, Model
from sparse_engine.wire import masks
from sparse_engine.wire import values as value_codecs
from sparse_engine.wire.values import Bytes, as_bytes, from_bytes
from sparsefl.kernels import bitmap as bitmaps
from sparsefl.kernels.checksum import checksum
from sparsefl.kernels.layout import Bitmap

MAGIC, VERSION = b"SPFL", 1
Values = Literal["fp32", "bf16", "fp16", "q8", "q16"]
VALUES: tuple[Values, ...] = ("fp32", "bf16", "fp16", "q8", "q16")
MASKS, PACKED = masks.CODECS, 128
_HEADER = Struct("<4sHBBQQQIIQQQ")
_CPU = torch.device("cpu")


class WireError(ValueError):
    """These bytes are no message for this receiver; the text says why."""


@dataclass(frozen=True)
class Header:
    """The fields of a message's header, and how long its parts are."""

    version: int
    mask: masks.Codec
    values: Values
    packed: bool
    checksum: int
    fingerprint: int
    known: int
    sender: int
    round: int
    mask_bytes: int
    values_bytes: int
    rest_bytes: int

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes of every part, in order."""
        sections = {"mask": self.mask_bytes, "values": self.values_bytes, "rest": self.rest_bytes}
        return {"header": _HEADER.size} | sections

    @property
    def nbytes(self) -> int:
        return sum(self.sizes.values())


class Residual:
    """What lossy messages lost so far, to be added to the next one: one per stream of messages.

    `state` is None before the first message, then a Model whose values and exempt weights are what was lost.
    The loss of an entry that the next message does not store is forgotten.
    """

    def __init__(self, state: Model | None = None) -> None:
        self.state = state


def encode(
    state: Model,
    *,
    sender: int = 0,
    round: int = 0,
    values: Values = "fp32",
    known: Model | Bitmap | None = None,
    residual: Residual | None = None,
    mask: masks.Codec | None = None,
    pack: bool = True,
) -> bytes:
    """Return `state` as a message.

    state          a model
    sender, round  numbers that travel in the header
    values         how numbers travel: "fp32" (exact), "bf16", "fp16", "q8" or "q16"
    known          a mask that the receiver has: only the changes travel if that is shorter
    residual       is added to what is sent, and then holds what this message lost
    mask           this mask codec; None: the shortest
    pack           False: values as they are, which is faster and longer

    >>> import torch, sparse_engine as se
    >>> model = se.compress(se.sparsify(torch.nn.Linear(20, 50), density=0.1))
    >>> blob = se.wire.encode(model, sender=3, round=7)
    >>> torch.equal(se.wire.decode(blob, like=model).values, model.values)
    True
    """
    message = _message(state, sender, round, values, known, residual, mask, pack)
    message.sent(residual)
    return b"".join(part.data for part in message.parts)


def encode_into(
    buffer: Any,
    state: Model,
    *,
    sender: int = 0,
    round: int = 0,
    values: Values = "fp32",
    known: Model | Bitmap | None = None,
    residual: Residual | None = None,
    mask: masks.Codec | None = None,
    pack: bool = True,
) -> int:
    """Write what `encode` returns into a writable buffer; return how many bytes it took.

    `max_bytes` bytes always suffice. The other arguments are those of `encode`.

    >>> import torch, sparse_engine as se
    >>> model = se.compress(se.sparsify(torch.nn.Linear(20, 50), density=0.1))
    >>> buffer = bytearray(se.wire.max_bytes(model))
    >>> size = se.wire.encode_into(buffer, model)
    >>> bytes(buffer[:size]) == se.wire.encode(model)
    True
    """
    out = _view(buffer)
    message = _message(state, sender, round, values, known, residual, mask, pack)
    nbytes = sum(part.size for part in message.parts)
    if nbytes > out.size or not out.flags.writeable:
        wanted = f"expected a writable buffer of at least {nbytes} bytes"
        raise ValueError(f"{wanted}, got {out.size}{'' if out.flags.writeable else ', read-only'}")
    np.concatenate(message.parts, out=out[:nbytes])
    message.sent(residual)
    return nbytes


def decode(
    blob: Any,
    like: Model | Layout,
    known: Model | Bitmap | None = None,
    *,
    sender: int | None = None,
    round: int | None = None,
) -> Model:
    """Return the model in a message; raise a WireError for bytes that are no message for this receiver.

    blob           the bytes of a message
    like           a model or layout of the same network; the result is on its device
    known          the mask that the sender builds on
    sender, round  refuse messages with other numbers; None: accept any

    >>> import torch, sparse_engine as se
    >>> model = se.compress(se.sparsify(torch.nn.Linear(20, 50), density=0.1))
    >>> se.wire.decode(se.wire.encode(model, values="q8"), like=model).density
    0.1
    """
    layout, device = (like, _CPU) if isinstance(like, Layout) else (like.layout, like.values.device)
    before, data = _known(known, layout), _view(blob)
    header = _header(data)
    _expect(header.fingerprint == _plan(layout).fingerprint, "a message for this model", "one for another")
    _expect(sender in (None, header.sender), f"a message of sender {sender}", header.sender)
    _expect(round in (None, header.round), f"a message of round {round}", header.round)
    _verify(data, header)
    try:
        return _state(data, header, layout, before).to(device)
    except ValueError as wrong:
        raise WireError(str(wrong)) from wrong


def inspect(blob: Any) -> Header:
    """Return the header of a message. Its checksum is checked; which model it belongs to is not.

    >>> import torch, sparse_engine as se
    >>> model = se.compress(se.sparsify(torch.nn.Linear(20, 50), density=0.1))
    >>> header = se.wire.inspect(se.wire.encode(model, sender=3, round=7))
    >>> header.sender, header.round, header.values
    (3, 7, 'fp32')
    """
    data = _view(blob)
    header = _header(data)
    _verify(data, header)
    return header


def max_bytes(like: Model | Layout, values: Values = "fp32") -> int:
    """Return a number of bytes that no message of such a model exceeds, unless its mask codec is given.

    like    a model or a layout
    values  how numbers travel, as in `encode`

    >>> import torch, sparse_engine as se
    >>> model = se.compress(se.sparsify(torch.nn.Linear(20, 50), density=0.1))
    >>> len(se.wire.encode(model)) <= se.wire.max_bytes(model)
    True
    """
    layout = like if isinstance(like, Layout) else like.layout
    plan, segments = _plan(layout), layout.segments
    weights = _codec(values).size(segments.numel + plan.num_weights)
    return _HEADER.size + masks.most(segments) + weights + plan.rest_size


class _Plan(NamedTuple):
    """The fingerprint of a layout, and where its parts lie in a message."""

    fingerprint: int
    weights: tuple[slice, ...]  # where in `rest` the exempt weights are
    vectors: tuple[slice, ...]  # and the others
    num_weights: int
    num_vectors: int
    num_integers: int

    @property
    def rest_size(self) -> int:
        return 4 * self.num_vectors + 8 * self.num_integers


@lru_cache(maxsize=64)
def _plan(layout: Layout) -> _Plan:
    prunable = list(zip(layout.names, layout.shapes, strict=True))
    rest = [(entry.name, entry.shape, str(entry.dtype).removeprefix("torch.")) for entry in layout.rest]
    text = json.dumps([prunable, rest], separators=(",", ":"))
    fingerprint = int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")
    ends = list(accumulate((prod(entry.shape) for entry in layout.floats), initial=0))
    parts = [*zip(layout.floats, map(slice, ends, ends[1:]), strict=False)]
    weights = tuple(part for entry, part in parts if len(entry.shape) > 1)
    vectors = tuple(part for entry, part in parts if len(entry.shape) <= 1)
    integers = sum(prod(entry.shape) for entry in layout.integers)
    return _Plan(fingerprint, weights, vectors, _length(weights), _length(vectors), integers)


def _length(parts: Iterable[slice]) -> int:
    return sum(part.stop - part.start for part in parts)


class _Message(NamedTuple):
    parts: list[Bytes]
    lost: Model | None  # to the receiver, where there is a residual

    def sent(self, residual: Residual | None) -> None:
        if residual is not None:
            residual.state = self.lost


def _message(
    state: Model,
    sender: int,
    round: int,
    values: Values,
    known: Model | Bitmap | None,
    residual: Residual | None,
    mask: masks.Codec | None,
    pack: bool,
) -> _Message:
    if not (0 <= sender < 2**32 and 0 <= round < 2**32):
        raise ValueError(f"expected a sender and a round from 0 to {2**32 - 1}, got {sender} and {round}")
    codec, plan, before = _codec(values), _plan(state.layout), _known(known, state.layout)
    state = _with_lost(state.to(_CPU), None if residual is None else residual.state)
    chosen, mask_section = _mask(state.bitmap, before, mask)
    weights = _weights(state)
    plain = codec.encode(weights)
    lost = None if residual is None else _split(state, weights - codec.decode(plain, weights.numel()))
    shorter = value_codecs.pack(codec, plain, weights.numel()) if pack else None
    vectors = _codec("fp32").encode(_parts(state.rest, plan.vectors))
    rest = np.concatenate([vectors, as_bytes(state.integers)])
    sections = [mask_section, plain if shorter is None else shorter, rest]
    builds_on = masks.digest(before) if before is not None and chosen in masks.BUILDING else 0
    how = VERSION, chosen, values, shorter is not None, 0
    who = plan.fingerprint, builds_on, sender, round
    header = Header(*how, *who, *(section.size for section in sections))
    return _Message([_packed(header, sections), *sections], lost)


def _mask(bitmap: Bitmap, known: Bitmap | None, wanted: masks.Codec | None) -> tuple[masks.Codec, Bytes]:
    if wanted is None:
        return masks.shortest(bitmap, known)
    possible = list(masks.sizes(bitmap, known))
    if wanted not in possible:
        raise ValueError(f"expected a mask codec that fits, out of {possible}, got {wanted!r}")
    return wanted, masks.write(wanted, bitmap, known)


def _codec(values: Values) -> value_codecs.Codec:
    if values not in VALUES:
        raise ValueError(f"expected values as one of {VALUES}, got {values!r}")
    return value_codecs.CODECS[values]


def _packed(header: Header, sections: list[Bytes]) -> Bytes:
    values = VALUES.index(header.values) + PACKED * header.packed
    numbers = MAGIC, VERSION, MASKS.index(header.mask), values, 0
    who = header.fingerprint, header.known, header.sender, header.round
    data = bytearray(_HEADER.pack(*numbers, *who, header.mask_bytes, header.values_bytes, header.rest_bytes))
    data[8:16] = _chain(np.frombuffer(data, np.uint8), sections).to_bytes(8, "little")
    return np.frombuffer(data, np.uint8)


def _chain(header: Bytes, sections: Iterable[Bytes]) -> int:
    value = int.from_bytes(header[:8].tobytes(), "little")
    for part in (header[16:], *sections):
        value = checksum(part, value)
    return value


def _header(data: Bytes) -> Header:
    _expect(data.size >= _HEADER.size, f"at least the {_HEADER.size} bytes of a header", data.size)
    magic, version, mask, values, *numbers = _HEADER.unpack(data[: _HEADER.size].tobytes())
    _expect(magic == MAGIC, f"a message, which starts with {MAGIC!r}", repr(magic))
    _expect(version == VERSION, f"a message of version {VERSION}", version)
    _expect(mask < len(MASKS), f"a mask codec below {len(MASKS)}", mask)
    packed, values = divmod(values, PACKED)
    _expect(values < len(VALUES), f"a value codec below {len(VALUES)}", values)
    header = Header(version, MASKS[mask], VALUES[values], bool(packed), *numbers)
    _expect(header.nbytes == data.size, f"{header.nbytes} bytes, as the header says", data.size)
    return header


def _verify(data: Bytes, header: Header) -> None:
    found = _chain(data[: _HEADER.size], _sections(data, header))
    _expect(found == header.checksum, f"the checksum {header.checksum:016x}", f"{found:016x}: it is damaged")


def _sections(data: Bytes, header: Header) -> list[Bytes]:
    a, b = _HEADER.size + header.mask_bytes, data.size - header.rest_bytes
    return [data[_HEADER.size : a], data[a:b], data[b:]]


def _state(data: Bytes, header: Header, layout: Layout, known: Bitmap | None) -> Model:
    mask, values, rest = _sections(data, header)
    codec, plan, segments = _codec(header.values), _plan(layout), layout.segments
    known = _built_on(header, known)
    flips = masks.counts(header.mask, mask, segments, known)
    stored = int((flips.grown - flips.dropped).sum()) + (0 if known is None else known.nnz)
    n = stored + plan.num_weights
    _expect_size("values", values.size, codec.size(n), below=header.packed)
    _expect_size("rest", rest.size, plan.rest_size)
    bitmap = masks.read(header.mask, mask, segments, flips, known)
    weights = codec.decode(value_codecs.unpack(codec, values, n) if header.packed else values, n)
    flat, split = torch.empty(plan.num_weights + plan.num_vectors), 4 * plan.num_vectors
    _put(flat, plan.weights, weights[stored:])
    _put(flat, plan.vectors, _codec("fp32").decode(rest[:split], plan.num_vectors))
    return Model(layout, bitmap, weights[:stored], flat, from_bytes(rest[split:], torch.int64))


def _built_on(header: Header, known: Bitmap | None) -> Bitmap | None:
    """Return the mask that the message builds on, if any."""
    if header.mask not in masks.BUILDING:
        _expect(header.known == 0, "no known mask for this codec", f"{header.known:016x}")
        return None
    if known is None:
        raise WireError("expected the mask that the message builds on, got none")
    digest = masks.digest(known)
    _expect(
        digest == header.known, f"the mask {header.known:016x} that the message builds on", f"{digest:016x}"
    )
    return known


def _known(known: Model | Bitmap | None, layout: Layout) -> Bitmap | None:
    if known is None:
        return None
    bitmap = known.bitmap if isinstance(known, Model) else known
    if bitmap.segments.sizes != layout.segments.sizes:
        raise ValueError(
            f"expected a known mask of sizes {layout.segments.sizes}, got {bitmap.segments.sizes}"
        )
    return bitmaps.to(bitmap, _CPU)


def _with_lost(state: Model, lost: Model | None) -> Model:
    if lost is None:
        return state
    differences = state.layout.differences(lost.layout)
    if differences:
        raise ValueError("expected a residual of the same layout, got one with " + "; ".join(differences))
    here = lost.with_pattern(state.bitmap)
    return replace(state, values=state.values + here.values, rest=state.rest + here.rest)


def _weights(state: Model) -> Tensor:
    """Return all numbers that go into the section of values."""
    exempt = _plan(state.layout).weights
    return torch.cat([state.values, *(state.rest[part] for part in exempt)]) if exempt else state.values


def _split(state: Model, weights: Tensor) -> Model:
    """Return a model with these weights and nothing else, on the pattern of `state`."""
    stored, rest = state.bitmap.nnz, torch.zeros_like(state.rest)
    _put(rest, _plan(state.layout).weights, weights[stored:])
    return replace(state, values=weights[:stored], rest=rest)


def _parts(flat: Tensor, where: tuple[slice, ...]) -> Tensor:
    return torch.cat([flat[part] for part in where]) if where else flat[:0]


def _put(flat: Tensor, where: tuple[slice, ...], parts: Tensor) -> None:
    for part, values in zip(where, parts.split([part.stop - part.start for part in where]), strict=True):
        flat[part] = values


def _view(blob: Any) -> Bytes:
    view = memoryview(blob)
    if not view.c_contiguous:
        raise ValueError(f"expected contiguous bytes, got strides {view.strides}")
    return np.frombuffer(view, np.uint8) if view.nbytes else np.empty(0, np.uint8)


def _expect_size(section: str, got: int, wanted: int, below: bool = False) -> None:
    fits = got < wanted if below else got == wanted
    _expect(fits, f"{'fewer than ' if below else ''}{wanted} bytes of {section}", got)


def _expect(condition: bool, wanted: str, got: object) -> None:
    if not condition:
        raise WireError(f"expected {wanted}, got {got}")
