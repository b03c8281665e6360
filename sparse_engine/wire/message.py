"""A message: a Model as bytes, close to its entropy in length, and decoded as untrusted input.

    header    64 bytes (sparse_engine/wire/header.py)
    mask      which entries are stored (sparse_engine/wire/masks.py)
    values    the stored entries, in order, then weights exempt from pruning (float tensors of more than one
              dimension), in the value codec, packed or not (sparse_engine/wire/values.py)
    rest      the other float tensors as float32; integers as int64

Little-endian, nothing between, nothing after. A message has one form: what `decode` accepts, `encode` writes
(but for the scales of q8 and q16). A receiver takes all sizes from its own model and compares, before it
allocates anything; so what a message costs is bounded by the receiver's model, whatever the sender claims.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from sparse_engine.model.model import Layout, Model
from sparse_engine.wire import form as forms
from sparse_engine.wire import header as headers
from sparse_engine.wire import masks, whole
from sparse_engine.wire import values as value_codecs
from sparse_engine.wire.header import VALUES, VERSION, Header, Values, WireError, expect
from sparse_engine.wire.values import Bytes, as_bytes, from_bytes
from sparsefl.kernels import bitmap as bitmaps
from sparsefl.kernels.layout import Bitmap

_CPU = torch.device("cpu")


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
    if values == "fp32" and known is residual is mask is None and pack:
        _check_numbers(sender, round)
        if (blob := whole.encode(state, sender, round)) is not None:
            return blob
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
    header = headers.read(data)
    expect(
        header.fingerprint == forms.form(layout).fingerprint, "a message for this model", "one for another"
    )
    expect(sender in (None, header.sender), f"a message of sender {sender}", header.sender)
    expect(round in (None, header.round), f"a message of round {round}", header.round)
    headers.verify(data, header)
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
    header = headers.read(data)
    headers.verify(data, header)
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
    form, segments = forms.form(layout), layout.segments
    weights = _codec(values).size(segments.numel + form.num_weights)
    return headers.SIZE + masks.most(segments) + weights + form.rest_size


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
    _check_numbers(sender, round)
    codec, form, before = _codec(values), forms.form(state.layout), _known(known, state.layout)
    state = _with_lost(state.to(_CPU), None if residual is None else residual.state)
    chosen, mask_section = _mask(state.bitmap, before, mask)
    weights = forms.weights(state)
    plain = codec.encode(weights)
    lost = None
    if residual is not None:
        lost = forms.with_weights(state, weights - codec.decode(plain, weights.numel()))
    shorter = value_codecs.pack(codec, plain, weights.numel()) if pack else None
    vectors = _codec("fp32").encode(forms.parts(state.rest, form.vectors))
    rest = np.concatenate([vectors, as_bytes(state.integers)]) if form.num_integers else vectors
    sections = [mask_section, plain if shorter is None else shorter, rest]
    builds_on = masks.digest(before) if before is not None and chosen in masks.BUILDING else 0
    how = VERSION, chosen, values, shorter is not None, 0
    who = form.fingerprint, builds_on, sender, round
    header = Header(*how, *who, *(section.size for section in sections))
    return _Message([headers.write(header, sections), *sections], lost)


def _check_numbers(sender: int, round: int) -> None:
    if not (0 <= sender < 2**32 and 0 <= round < 2**32):
        raise ValueError(f"expected a sender and a round from 0 to {2**32 - 1}, got {sender} and {round}")


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


def _state(data: Bytes, header: Header, layout: Layout, known: Bitmap | None) -> Model:
    mask, values, rest = headers.sections_of(data, header)
    codec, form, segments = _codec(header.values), forms.form(layout), layout.segments
    known = _built_on(header, known)
    flips = masks.counts(header.mask, mask, segments, known)
    stored = int((flips.grown - flips.dropped).sum()) + (0 if known is None else known.nnz)
    n = stored + form.num_weights
    _expect_size("values", values.size, codec.size(n), below=header.packed)
    _expect_size("rest", rest.size, form.rest_size)
    bitmap = masks.read(header.mask, mask, segments, flips, known)
    weights = codec.decode(value_codecs.unpack(codec, values, n) if header.packed else values, n)
    flat, split = torch.empty(form.num_weights + form.num_vectors), 4 * form.num_vectors
    forms.put(flat, form.weights, weights[stored:])
    forms.put(flat, form.vectors, _codec("fp32").decode(rest[:split], form.num_vectors))
    return Model(layout, bitmap, weights[:stored], flat, from_bytes(rest[split:], torch.int64))


def _built_on(header: Header, known: Bitmap | None) -> Bitmap | None:
    """Return the mask that the message builds on, if any."""
    if header.mask not in masks.BUILDING:
        expect(header.known == 0, "no known mask for this codec", f"{header.known:016x}")
        return None
    if known is None:
        raise WireError("expected the mask that the message builds on, got none")
    digest = masks.digest(known)
    expect(
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


def _expect_size(section: str, got: int, wanted: int, below: bool = False) -> None:
    fits = got < wanted if below else got == wanted
    expect(fits, f"{'fewer than ' if below else ''}{wanted} bytes of {section}", got)


def _view(blob: Any) -> Bytes:
    view = memoryview(blob)
    if not view.c_contiguous:
        raise ValueError(f"expected contiguous bytes, got strides {view.strides}")
    return np.frombuffer(view, np.uint8) if view.nbytes else np.empty(0, np.uint8)
