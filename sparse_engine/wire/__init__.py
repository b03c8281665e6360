"""A model as bytes, and back: `encode`, `decode`, `inspect` (sparse_engine/wire/message.py)."""

from sparse_engine.wire.header import Header, Values, WireError
from sparse_engine.wire.message import Residual, decode, encode, encode_into, inspect, max_bytes

__all__ = [
    "Header",
    "Residual",
    "Values",
    "WireError",
    "decode",
    "encode",
    "encode_into",
    "inspect",
    "max_bytes",
]
