"""A whole message in one native call: exact numbers, a mask that builds on nothing, nothing lost.

That is what clients send in most runs, once per turn. The bytes are those that message.py puts together from
its parts.
"""

import numpy as np
import torch

from sparse_engine.model.model import Model
from sparse_engine.wire import form as forms
from sparsefl.kernels import registry
from sparsefl.kernels.native import address, extension, placement, pointer

_MOST = 2**32 - 1  # entries of a tensor that a count can say


def encode(state: Model, sender: int, round: int) -> bytes | None:
    """Return the message; None where the parts have to be put together, or have to say what is wrong."""
    bitmap = state.bitmap
    if (
        registry.backend_for(bitmap.words.device.type) != "cpu"
        or max(bitmap.segments.sizes, default=0) > _MOST
    ):
        return None
    form, native = forms.form(state.layout), extension()
    weights, vectors = forms.weights(state), forms.parts(state.rest, form.vectors)
    message = native.Message(
        words=pointer(bitmap.words, torch.int64),
        stored=pointer(bitmap.counts, torch.int64),
        segments=placement(bitmap.segments),
        weights=pointer(weights),
        num_weights=weights.numel(),
        vectors=pointer(vectors),
        num_vectors=vectors.numel(),
        integers=pointer(state.integers, torch.int64),
        num_integers=state.integers.numel(),
        fingerprint=form.fingerprint,
        sender=sender,
        round=round,
    )
    out = np.empty(native.message_room(message), np.uint8)
    size = native.message_encode(message, address(out))
    return None if size < 0 else out[:size].tobytes()
